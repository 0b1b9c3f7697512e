{{- define "nextcloud.name" -}}
{{- default .Chart.Name .Values.nameOverride | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{/* The release's name alone where it contains the chart's, else both. */}}
{{- define "nextcloud.fullname" -}}
{{- if .Values.fullnameOverride -}}
{{- .Values.fullnameOverride | trunc 63 | trimSuffix "-" -}}
{{- else -}}
{{- $name := default .Chart.Name .Values.nameOverride -}}
{{- ternary .Release.Name (printf "%s-%s" .Release.Name $name) (contains $name .Release.Name) | trunc 63 | trimSuffix "-" -}}
{{- end -}}
{{- end -}}

{{- define "nextcloud.redis.fullname" -}}
{{- printf "%s-redis" .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end -}}

{{- define "nextcloud.serviceAccount" -}}
{{- .Values.rbac.serviceaccount.name | default (include "nextcloud.fullname" .) -}}
{{- end -}}

{{- define "nextcloud.selector" -}}
app.kubernetes.io/name: {{ include "nextcloud.name" . }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/component: app
{{- end -}}

{{- define "nextcloud.labels" -}}
{{ include "nextcloud.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version | replace "+" "_" | trunc 63 | trimSuffix "-" }}
{{- end -}}

{{/* Takes (dict "root" $ "component" "master"). Redis is a subchart in the reference chart, hence its own labels. */}}
{{- define "nextcloud.redis.selector" -}}
app.kubernetes.io/name: redis
app.kubernetes.io/instance: {{ .root.Release.Name }}
{{- with .component }}
app.kubernetes.io/component: {{ . }}
{{- end }}
{{- end -}}

{{- define "nextcloud.redis.labels" -}}
{{ include "nextcloud.redis.selector" . }}
app.kubernetes.io/managed-by: {{ .root.Release.Service }}
helm.sh/chart: redis-19.5.0
{{- end -}}

{{- define "nextcloud.databaseSecret" -}}
{{- .Values.externalDatabase.existingSecret.secretName | default (printf "%s-db" .Release.Name) -}}
{{- end -}}

{{- define "nextcloud.adminSecret" -}}
{{- .Values.nextcloud.existingSecret.secretName | default (include "nextcloud.fullname" .) -}}
{{- end -}}

{{/* Takes (dict "secret" "name" "key" "key"). */}}
{{- define "nextcloud.fromSecret" -}}
valueFrom:
  secretKeyRef:
    name: {{ .secret }}
    key: {{ .key }}
{{- end -}}

{{/* What the app is told. The order of the database branches is the reference chart's: SQLite first. */}}
{{- define "nextcloud.env" -}}
{{- if .Values.internalDatabase.enabled }}
- name: SQLITE_DATABASE
  value: {{ .Values.internalDatabase.name | quote }}
{{- else }}
{{- $secret := include "nextcloud.databaseSecret" . }}
{{- $keys := .Values.externalDatabase.existingSecret }}
{{- $postgres := eq .Values.externalDatabase.type "postgresql" }}
{{- $prefix := ternary "POSTGRES" "MYSQL" $postgres }}
- name: {{ $prefix }}_HOST
  {{- if $keys.hostKey }}
  {{- include "nextcloud.fromSecret" (dict "secret" $secret "key" $keys.hostKey) | nindent 2 }}
  {{- else }}
  value: {{ .Values.externalDatabase.host | quote }}
  {{- end }}
- name: {{ ternary "POSTGRES_DB" "MYSQL_DATABASE" $postgres }}
  {{- if $keys.databaseKey }}
  {{- include "nextcloud.fromSecret" (dict "secret" $secret "key" $keys.databaseKey) | nindent 2 }}
  {{- else }}
  value: {{ .Values.externalDatabase.database | quote }}
  {{- end }}
- name: {{ $prefix }}_USER
  {{- include "nextcloud.fromSecret" (dict "secret" $secret "key" $keys.usernameKey) | nindent 2 }}
- name: {{ $prefix }}_PASSWORD
  {{- include "nextcloud.fromSecret" (dict "secret" $secret "key" $keys.passwordKey) | nindent 2 }}
{{- end }}
- name: NEXTCLOUD_ADMIN_USER
  {{- include "nextcloud.fromSecret" (dict "secret" (include "nextcloud.adminSecret" .) "key" .Values.nextcloud.existingSecret.usernameKey) | nindent 2 }}
- name: NEXTCLOUD_ADMIN_PASSWORD
  {{- include "nextcloud.fromSecret" (dict "secret" (include "nextcloud.adminSecret" .) "key" .Values.nextcloud.existingSecret.passwordKey) | nindent 2 }}
- name: NEXTCLOUD_TRUSTED_DOMAINS
  value: {{ default .Values.nextcloud.host (join " " .Values.nextcloud.trustedDomains) | quote }}
{{- if ne (int .Values.nextcloud.update) 0 }}
- name: NEXTCLOUD_UPDATE
  value: {{ .Values.nextcloud.update | quote }}
{{- end }}
- name: NEXTCLOUD_DATA_DIR
  value: {{ .Values.nextcloud.datadir | quote }}
{{- with .Values.nextcloud.mail }}
{{- if .enabled }}
- name: MAIL_FROM_ADDRESS
  value: {{ .fromAddress | quote }}
- name: MAIL_DOMAIN
  value: {{ .domain | quote }}
- name: SMTP_SECURE
  value: {{ .smtp.secure | quote }}
- name: SMTP_PORT
  value: {{ .smtp.port | quote }}
- name: SMTP_AUTHTYPE
  value: {{ .smtp.authtype | quote }}
{{- range $variable, $key := dict "SMTP_HOST" "smtpHostKey" "SMTP_NAME" "smtpUsernameKey" "SMTP_PASSWORD" "smtpPasswordKey" }}
- name: {{ $variable }}
  {{- include "nextcloud.fromSecret" (dict "secret" (include "nextcloud.adminSecret" $) "key" (get $.Values.nextcloud.existingSecret $key)) | nindent 2 }}
{{- end }}
{{- end }}
{{- end }}
{{- if .Values.redis.enabled }}
- name: REDIS_HOST
  value: {{ include "nextcloud.redis.fullname" . }}-master
- name: REDIS_HOST_PORT
  value: {{ .Values.redis.master.service.ports.redis | quote }}
{{- if .Values.redis.auth.enabled }}
- name: REDIS_HOST_PASSWORD
  {{- if and .Values.redis.auth.existingSecret .Values.redis.auth.existingSecretPasswordKey }}
  {{- include "nextcloud.fromSecret" (dict "secret" .Values.redis.auth.existingSecret "key" .Values.redis.auth.existingSecretPasswordKey) | nindent 2 }}
  {{- else }}
  value: {{ .Values.redis.auth.password }}
  {{- end }}
{{- end }}
{{- end }}
{{- with .Values.nextcloud.extraEnv }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* Takes (dict "root" $ "probe" .Values.livenessProbe). */}}
{{- define "nextcloud.probe" -}}
httpGet:
  path: /status.php
  port: http
  httpHeaders:
    - name: Host
      value: {{ .root.Values.nextcloud.host | quote }}
{{ omit .probe "enabled" | toYaml }}
{{- end -}}
