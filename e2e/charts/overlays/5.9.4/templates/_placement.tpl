{{/* No node has this label: the pods stay Pending and the Deployment is never available. */}}
{{- define "nextcloud.placement" -}}
nodeSelector:
  clientapp.test/no-such-node: "true"
{{- end -}}
