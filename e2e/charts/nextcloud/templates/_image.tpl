{{/* A file of its own, so that a version can put its images together in another way. */}}
{{- define "nextcloud.image" -}}
{{- if .Values.image.tag -}}
{{- printf "%s:%s" .Values.image.repository .Values.image.tag -}}
{{- else -}}
{{- printf "%s:%s-%s" .Values.image.repository .Chart.AppVersion .Values.image.flavor -}}
{{- end -}}
{{- end -}}

{{/* What prepares something for the app's container: nothing here. */}}
{{- define "nextcloud.initContainers" -}}
{{- end -}}
