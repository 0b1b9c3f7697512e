{{/* The name of the claim; another in the version that renames it. */}}
{{- define "nextcloud.claim" -}}
{{- printf "%s-nextcloud" (include "nextcloud.fullname" .) -}}
{{- end -}}
