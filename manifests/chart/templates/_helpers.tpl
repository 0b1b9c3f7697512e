{{/* The labels of every object. */}}
{{- define "clientapp-operator.labels" -}}
app.kubernetes.io/part-of: clientapp-operator
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/instance: {{ .Release.Name }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version | replace "+" "_" }}
{{- end }}

{{/* A document of `file`, in the release's namespace and with the labels: {root, document}. As JSON. */}}
{{- define "clientapp-operator.placed" -}}
{{- $metadata := .document.metadata }}
{{- if $metadata.namespace }}{{ $_ := set $metadata "namespace" .root.Release.Namespace }}{{ end }}
{{- range .document.subjects }}{{ $_ := set . "namespace" $.root.Release.Namespace }}{{ end }}
{{- $labels := include "clientapp-operator.labels" .root | fromYaml }}
{{- $_ := set $metadata "labels" (merge $labels ($metadata.labels | default dict)) }}
{{- .document | toJson }}
{{- end }}

{{/* All documents of a file: {root, file}. */}}
{{- define "clientapp-operator.documents" -}}
{{- range splitList "\n---\n" (.root.Files.Get .file) }}
---
{{ include "clientapp-operator.placed" (dict "root" $.root "document" (fromYaml .)) | fromJson | toYaml }}
{{- end }}
{{- end }}

{{/* Two lists whose entries have names; an entry of `over` takes the place of the one with its name: {base, over}. As JSON. */}}
{{- define "clientapp-operator.byName" -}}
{{- $names := list }}
{{- range .over }}{{ $names = append $names .name }}{{ end }}
{{- $kept := list }}
{{- range .base }}{{ if not (has .name $names) }}{{ $kept = append $kept . }}{{ end }}{{ end }}
{{- concat $kept (.over | default list) | toJson }}
{{- end }}
