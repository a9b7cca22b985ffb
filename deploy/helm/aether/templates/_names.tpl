{{- define "aether.labels" -}}
app.kubernetes.io/name: aether
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- define "aether.image" -}}
{{ required "image.repository: found nothing; give the image that deploy/images/platform builds" .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- define "aether.flags" -}}
- --site=/etc/aether/site/site.yaml
- --log-format=json
{{- end }}

{{- define "aether.temporal" -}}
- --temporal-address={{ .Values.temporal.address }}
- --temporal-namespace={{ .Values.temporal.namespace }}
{{- if .Values.codecKeysSecret }}
- --codec-keys=/etc/aether/keys/codec-keys
{{- end }}
{{- end }}

{{- define "aether.mounts" -}}
volumeMounts:
  - {name: site, mountPath: /etc/aether/site, readOnly: true}
  {{- if .Values.codecKeysSecret }}
  - {name: keys, mountPath: /etc/aether/keys, readOnly: true}
  {{- end }}
  - {name: scratch, mountPath: /tmp}
{{- end }}

{{- define "aether.volumes" -}}
volumes:
  - {name: site, configMap: {name: {{ .Release.Name }}-site}}
  {{- if .Values.codecKeysSecret }}
  - {name: keys, secret: {secretName: {{ .Values.codecKeysSecret }}, defaultMode: 0400}}
  {{- end }}
  - {name: scratch, emptyDir: {}}
{{- end }}
