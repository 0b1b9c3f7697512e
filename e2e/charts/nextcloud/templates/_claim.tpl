{{/* The name of the claim for the app's files. A file of its own, so that a version can rename it. */}}
{{- define "nextcloud.claim" -}}
{{- include "nextcloud.fullname" . }}-nextcloud
{{- end -}}
