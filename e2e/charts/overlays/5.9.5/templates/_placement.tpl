{{/* Misspelt: lax validation drops the field in silence, strict validation refuses the Deployment. */}}
{{- define "nextcloud.placement" -}}
nodeSelectr:
  kubernetes.io/os: linux
{{- end -}}
