{{/* Another name than the version before: its volume would be empty. */}}
{{- define "nextcloud.claim" -}}
{{- include "nextcloud.fullname" . }}-data
{{- end -}}
