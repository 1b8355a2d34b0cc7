{{- define "waybill.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{- /* A list: the root, and the component. */}}
{{- define "waybill.selector" -}}
app.kubernetes.io/instance: {{ (first .).Release.Name }}
app.kubernetes.io/component: {{ last . }}
{{- end }}

{{- define "waybill.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{- /* The broker's name, which is in its certificate. */}}
{{- define "waybill.broker" -}}
{{ .Values.mqtt.host | default (printf "%s-broker.%s.svc" .Release.Name .Release.Namespace) }}
{{- end }}

{{- define "waybill.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile: {type: RuntimeDefault}
{{- end }}

{{- define "waybill.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{- define "waybill.tolerations" -}}
{{- range list "not-ready" "unreachable" }}
- key: node.kubernetes.io/{{ . }}
  operator: Exists
  effect: NoExecute
  tolerationSeconds: {{ $.Values.unreachableSeconds }}
{{- end }}
{{- end }}

{{- /* A list: the root, and the component. */}}
{{- define "waybill.spread" -}}
{{- range $key := list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
- topologyKey: {{ $key }}
  maxSkew: 1
  # With one zone left, two in it are better than one.
  whenUnsatisfiable: ScheduleAnyway
  labelSelector:
    matchLabels:
      {{- include "waybill.selector" $ | nindent 6 }}
{{- end }}
{{- end }}

{{- /* Who may read metrics, as in `from` of a NetworkPolicy. */}}
{{- define "waybill.metricsFrom" -}}
{{ .Values.networkPolicy.metricsFrom | default (list (dict "podSelector" (dict))) | toJson }}
{{- end }}

{{- /* As many gateways as there may be. */}}
{{- define "waybill.gateways" -}}
{{ max .Values.gateway.replicas .Values.gateway.autoscaling.maxReplicas }}
{{- end }}

{{- /* Settings as TOML. Helm has all numbers as fractions. */}}
{{- define "waybill.toml" -}}
{{ regexReplaceAll "(?m)(= -?[0-9]+)[.]0$" (toToml .) "${1}" }}
{{- end }}
