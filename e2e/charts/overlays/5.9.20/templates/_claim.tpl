{{- define "nextcloud.claim" -}}
{{- printf "%s-files" (include "nextcloud.fullname" .) -}}
{{- end -}}
