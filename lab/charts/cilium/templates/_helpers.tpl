{{- define "cilium.image" -}}
{{- if .override -}}
{{ .override }}
{{- else -}}
{{ .repository }}:{{ .tag }}{{ if .useDigest }}@{{ .digest }}{{ end }}
{{- end -}}
{{- end -}}

{{- define "cilium.operator.image" -}}
{{- with .Values.operator.image -}}
{{- if .override -}}
{{ .override }}
{{- else -}}
{{ .repository }}-generic{{ .suffix }}:{{ .tag }}{{ if .useDigest }}@{{ .genericDigest }}{{ end }}
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "cilium.envoy.enabled" -}}
{{- if not .Values.l7Proxy -}}false
{{- else if kindIs "bool" .Values.envoy.enabled -}}{{ .Values.envoy.enabled }}
{{- else if and .Values.upgradeCompatibility (semverCompare "<1.16" (toString .Values.upgradeCompatibility)) -}}false
{{- else -}}true
{{- end -}}
{{- end -}}

{{- define "cilium.apiserver" -}}
{{- $host := .Values.k8sServiceHost -}}
{{- $port := .Values.k8sServicePort -}}
{{- if eq $host "auto" -}}
{{- $info := lookup "v1" "ConfigMap" "kube-public" "cluster-info" -}}
{{- $config := get ($info.data | default dict) "kubeconfig" | default "" | fromYaml -}}
{{- if not $config.clusters -}}{{- fail "k8sServiceHost is auto but ConfigMap kube-public/cluster-info cannot be read" -}}{{- end -}}
{{- $url := urlParse (first $config.clusters).cluster.server -}}
{{- $host = first (splitList ":" $url.host) -}}
{{- $port = last (splitList ":" $url.host) -}}
{{- end -}}
{{- if $host }}
- name: KUBERNETES_SERVICE_HOST
  value: {{ $host | quote }}
{{- end }}
{{- if $port }}
- name: KUBERNETES_SERVICE_PORT
  value: {{ $port | toString | quote }}
{{- end }}
{{- end -}}

{{- define "cilium.podLabels" -}}
app.kubernetes.io/part-of: cilium
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end -}}

{{- define "cilium.nodeEnv" -}}
- name: K8S_NODE_NAME
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: spec.nodeName
- name: CILIUM_K8S_NAMESPACE
  valueFrom:
    fieldRef:
      apiVersion: v1
      fieldPath: metadata.namespace
{{- end -}}
