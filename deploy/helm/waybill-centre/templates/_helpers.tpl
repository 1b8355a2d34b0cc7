{{- define "centre.labels" -}}
app.kubernetes.io/name: {{ .Chart.Name }}
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
{{- end }}

{{/* Labels of the pods of a component: (list $ "usage") */}}
{{- define "centre.selector" -}}
{{- $root := index . 0 -}}
app.kubernetes.io/instance: {{ $root.Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "centre.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* The command of each job. */}}
{{- define "centre.commands" -}}
ingest: [ingest]
usage: [usage, --follow]
geofence: [geofence, --follow]
proximity: [proximity, --follow]
verdicts: [verdicts, --follow]
maintain: [maintain, --every, "60"]
status: [status, --serve]
{{- end }}

{{- define "centre.sparkJobs" -}}ingest usage geofence proximity{{- end }}

{{- define "centre.claim" -}}
{{ .Values.storage.existingClaim | default (printf "%s-centre" .Release.Name) }}
{{- end }}

{{/* What all pods have: (list $ "usage") */}}
{{- define "centre.podSpec" -}}
{{- $root := index . 0 -}}
securityContext:
  runAsNonRoot: true
  runAsUser: 10001
  runAsGroup: 10001
  fsGroup: 10001
  # A lake has many files; only the volume's root is looked at.
  fsGroupChangePolicy: OnRootMismatch
  seccompProfile: {type: RuntimeDefault}
{{- with $root.Values.nodeSelector }}
nodeSelector:
  {{- toYaml . | nindent 2 }}
{{- end }}
tolerations:
  {{- range list "not-ready" "unreachable" }}
  - key: node.kubernetes.io/{{ . }}
    operator: Exists
    effect: NoExecute
    tolerationSeconds: {{ $root.Values.unreachableSeconds }}
  {{- end }}
{{- end }}

{{- define "centre.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities: {drop: [ALL]}
{{- end }}

{{/* Volumes that a driver and its executors see at the same path. */}}
{{- define "centre.sharedVolumes" -}}
- name: data
  persistentVolumeClaim: {claimName: {{ include "centre.claim" . }}}
- name: tmp
  emptyDir: {}
{{- if .Values.secrets.files }}
# Files, so that renewed tokens and certificates are read without a restart.
- name: secret
  secret: {secretName: {{ .Values.secrets.files }}, defaultMode: 0440}
{{- end }}
{{- end }}

{{- define "centre.sharedMounts" -}}
- {name: data, mountPath: /var/lib/waybill}
- {name: tmp, mountPath: /tmp}
{{- if .Values.secrets.files }}
- {name: secret, mountPath: /etc/waybill/secret, readOnly: true}
{{- end }}
{{- end }}

{{/* cloud.toml of a component: (list $ "usage") */}}
{{- define "centre.settings" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $v := $root.Values -}}
{{- $made := deepCopy $v.settings -}}
{{- $_ := set $made "lake" ($v.lake | default "/var/lib/waybill/lake") -}}
{{- $_ := set $made "checkpoints" "/var/lib/waybill/checkpoints" -}}
{{- if not (get (get $made "privacy" | default dict) "access_log") -}}
{{- $_ := set $made "privacy" (dict "access_log" "/var/lib/waybill/access.log") -}}
{{- end -}}
{{- $metrics := dict "host" "0.0.0.0" -}}
{{- range $job, $_ := fromYaml (include "centre.commands" $root) -}}
{{- $_ := set $metrics (printf "%s_port" $job) $v.metricsPort -}}
{{- end -}}
{{- $_ := set $made "metrics" $metrics -}}
{{- $console := get $made "console" | default dict -}}
{{- $_ := set $console "host" (ternary "0.0.0.0" "127.0.0.1" (hasKey $console "auth")) -}}
{{- $_ := set $console "port" $v.console.port -}}
{{- $_ := set $made "console" $console -}}
{{- if has $name (splitList " " (include "centre.sparkJobs" $root)) -}}
{{- $spark := get $made "spark" | default dict -}}
{{- $extra := deepCopy $v.spark.extra -}}
{{- if eq $v.spark.mode "local" -}}
{{- $_ := set $spark "master" (printf "local[%d]" (int $v.spark.cores)) -}}
{{- else -}}
{{- $executors := mergeOverwrite (deepCopy $v.spark.executors) (get $v.jobs $name).executors -}}
{{- $_ := set $spark "master" "k8s://https://kubernetes.default.svc" -}}
{{- $_ := set $spark "python" "/opt/waybill/bin/python" -}}
{{- $_ := set $spark "executor_memory" $executors.memory -}}
{{- $_ := set $spark "executor_cores" $executors.cores -}}
{{- $ours := fromYaml (include "centre.executors" (list $root $name $executors)) -}}
{{- $extra = mergeOverwrite $ours $extra -}}
{{- end -}}
{{- $_ := set $spark "driver_memory" $v.spark.driver.memory -}}
{{- $_ := set $spark "extra" $extra -}}
{{- $_ := set $made "spark" $spark -}}
{{- end -}}
{{ toToml $made }}
{{- end }}

{{/* Spark's settings of executors as pods: (list $ "usage" EXECUTORS). */}}
{{- define "centre.executors" -}}
{{- $root := index . 0 -}}
{{- $executors := index . 2 -}}
{{- include "centre.sparkConf" $root }}
{{- if eq $root.Values.spark.mode "kubernetes" }}
spark.kubernetes.namespace: {{ $root.Release.Namespace }}
spark.kubernetes.container.image: {{ include "centre.image" $root }}
spark.kubernetes.container.image.pullPolicy: {{ $root.Values.image.pullPolicy }}
spark.kubernetes.executor.podTemplateFile: /etc/waybill/settings/{{ index . 1 }}-executor.yaml
spark.kubernetes.executor.request.cores: {{ $executors.cpu | quote }}
spark.executor.instances: {{ $executors.instances | quote }}
spark.executor.memoryOverhead: {{ $executors.memoryOverhead }}
{{- end }}
{{- end }}

{{/* So that a driver needs rights on pods and on nothing else, and that what it says to executors is encrypted. */}}
{{- define "centre.sparkConf" -}}
spark.kubernetes.executor.disableConfigMap: "true"
spark.kubernetes.driver.ownPersistentVolumeClaim: "false"
spark.kubernetes.driver.reusePersistentVolumeClaim: "false"
spark.kubernetes.driver.service.deleteOnTermination: "false"
spark.authenticate: "true"
spark.network.crypto.enabled: "true"
spark.network.timeout: {{ .Values.spark.networkTimeout }}
{{- end }}
