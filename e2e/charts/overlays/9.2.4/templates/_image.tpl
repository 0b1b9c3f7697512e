{{/* As in the published charts from 8.5.4 on. */}}
{{- define "nextcloud.image" -}}
{{- $tag := .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.image.flavor) -}}
{{- printf "%s/%s:%s" (coalesce ((.Values.global).image).registry .Values.image.registry) .Values.image.repository $tag -}}
{{- end -}}
