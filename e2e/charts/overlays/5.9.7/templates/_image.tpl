{{/* As the published chart from 8.5.4: the registry is a key of its own, and in front of whatever the repository is. */}}
{{- define "nextcloud.image" -}}
{{- $registry := coalesce .Values.global.image.registry .Values.image.registry -}}
{{- $tag := .Values.image.tag | default (printf "%s-%s" .Chart.AppVersion .Values.image.flavor) -}}
{{- printf "%s/%s:%s" $registry .Values.image.repository $tag -}}
{{- end -}}

{{/* One more container with the app's image. */}}
{{- define "nextcloud.initContainers" -}}
{{- if .Values.redis.enabled }}
- name: init-redis-session-ini
  image: {{ include "nextcloud.image" . | quote }}
  command: [touch, /usr/local/etc/php/conf.d/redis-session.ini]
{{- end }}
{{- end -}}
