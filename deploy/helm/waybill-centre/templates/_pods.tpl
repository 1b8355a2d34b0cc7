{{/* The pod of a job: (list $ "usage" COMMAND) */}}
{{- define "centre.jobPod" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
{{- $command := index . 2 -}}
{{- $v := $root.Values -}}
{{- $job := get $v.jobs $name -}}
{{- $spark := has $name (splitList " " (include "centre.sparkJobs" $root)) -}}
{{- $pods := and $spark (ne $v.spark.mode "local") -}}
{{- $operated := and $spark (eq $v.spark.mode "operator") -}}
metadata:
  labels:
    {{- include "centre.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $name }}
  annotations:
    # Settings are read at the start, so other ones need a new pod.
    checksum/settings: {{ include (print $root.Template.BasePath "/settings.yaml") $root | sha256sum }}
spec:
  serviceAccountName: {{ $root.Release.Name }}-{{ ternary "driver" "centre" $pods }}
  automountServiceAccountToken: {{ $pods }}
  terminationGracePeriodSeconds: {{ $v.terminationGracePeriodSeconds }}
  {{- include "centre.podSpec" (list $root $name) | nindent 2 }}
  containers:
    {{- if $operated }}
    # The operator gives the arguments.
    - name: spark-kubernetes-driver
      command: [{{ include "centre.submit" $root }}]
    {{- else }}
    - name: {{ $name }}
      args: {{ concat $command (list "--config" (printf "/etc/waybill/settings/%s.toml" (ternary $name "cloud" $spark))) | toJson }}
    {{- end }}
      image: {{ include "centre.image" $root }}
      imagePullPolicy: {{ $v.image.pullPolicy }}
      {{- if and $pods (not $operated) }}
      env:
        - name: POD_NAME
          valueFrom: {fieldRef: {fieldPath: metadata.name}}
        - name: POD_IP
          valueFrom: {fieldRef: {fieldPath: status.podIP}}
        # Those that an earlier driver left are deleted at the start.
        - name: WAYBILL_EXECUTORS
          value: app.kubernetes.io/instance={{ $root.Release.Name }},app.kubernetes.io/component={{ $name }}-executor
        # Executors belong to this pod, and end with it. They reach it by its address: by a name, they might reach
        # the one on a dead node.
        - name: PYSPARK_SUBMIT_ARGS
          value: >-
            --conf spark.kubernetes.driver.pod.name=$(POD_NAME) --conf spark.driver.host=$(POD_IP) pyspark-shell
      {{- end }}
      ports:
        - {name: metrics, containerPort: {{ $v.metricsPort }}}
      # Not ready while runs fail or take too long. `status` is ready when it answers: what it says is of the others.
      readinessProbe:
        httpGet: {path: {{ ternary "/metrics" "/health" (eq $name "status") }}, port: metrics}
        periodSeconds: 10
        timeoutSeconds: 5
      # A job ends by itself after an error; only one that answers nothing is a reason to start it again.
      livenessProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 30
        timeoutSeconds: 10
        failureThreshold: 4
      # Executors have 300 s to come.
      startupProbe:
        httpGet: {path: /metrics, port: metrics}
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 180
      resources:
        {{- $resources := $spark | ternary (mergeOverwrite (deepCopy $v.spark.driver.resources) $job.resources) $job.resources }}
        {{- toYaml $resources | nindent 8 }}
      securityContext:
        {{- include "centre.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        - {name: settings, mountPath: /etc/waybill/settings, readOnly: true}
        {{- include "centre.sharedMounts" $root | nindent 8 }}
  volumes:
    - name: settings
      configMap: {name: {{ $root.Release.Name }}-centre}
    {{- include "centre.sharedVolumes" $root | nindent 4 }}
{{- end }}

{{/* What Spark makes an executor's pod from: (list $ "usage"). It adds image, resources and the driver's address. */}}
{{- define "centre.executorPod" -}}
{{- $root := index . 0 -}}
{{- $name := index . 1 -}}
metadata:
  labels:
    {{- include "centre.labels" $root | nindent 4 }}
    app.kubernetes.io/component: {{ $name }}-executor
spec:
  serviceAccountName: {{ $root.Release.Name }}-centre
  # Executors ask nothing of the cluster.
  automountServiceAccountToken: false
  terminationGracePeriodSeconds: 15
  {{- include "centre.podSpec" (list $root $name) | nindent 2 }}
  topologySpreadConstraints:
    {{- range list "topology.kubernetes.io/zone" "kubernetes.io/hostname" }}
    - topologyKey: {{ . }}
      maxSkew: 1
      # With one node left, two on it are better than one.
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "centre.selector" (list $root (printf "%s-executor" $name)) | nindent 10 }}
    {{- end }}
  containers:
    - name: spark-kubernetes-executor
      command: [{{ include "centre.submit" $root }}]
      securityContext:
        {{- include "centre.containerSecurity" $root | nindent 8 }}
      volumeMounts:
        {{- include "centre.sharedMounts" $root | nindent 8 }}
  volumes:
    {{- include "centre.sharedVolumes" $root | nindent 4 }}
{{- end }}

{{- define "centre.submit" -}}/opt/waybill/lib/python3.11/site-packages/pyspark/bin/spark-submit{{- end }}
