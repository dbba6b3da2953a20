{{/* The cluster's version, as 1.30.4; of what tells no patch version, such as Argo CD, its first one. */}}
{{- define "gpushare.kubeVersion" -}}
{{- $found := regexFind "[0-9]+\\.[0-9]+(\\.[0-9]+)?" (default .Capabilities.KubeVersion.Version .Values.kubeVersion) -}}
{{- $found }}{{ if eq (len (splitList "." $found)) 2 }}.0{{ end -}}
{{- end -}}

{{/* Whether the cluster has at least a version: the chart, "1.30". */}}
{{- define "gpushare.since" -}}
{{- semverCompare (printf ">=%s.0" (index . 1)) (include "gpushare.kubeVersion" (index . 0)) -}}
{{- end -}}

{{/* Labels of an object: the chart, the component. Selectors and pods have the first two alone: selectors never change. */}}
{{- define "gpushare.labels" -}}
{{ include "gpushare.ownLabels" . }}
{{- with (index . 0).Values.commonLabels }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{- define "gpushare.ownLabels" -}}
{{- $chart := index . 0 -}}
app.kubernetes.io/name: {{ index . 1 }}
app.kubernetes.io/instance: {{ $chart.Release.Name }}
app.kubernetes.io/part-of: gpushare
app.kubernetes.io/version: {{ quote $chart.Chart.AppVersion }}
app.kubernetes.io/managed-by: {{ $chart.Release.Service }}
helm.sh/chart: {{ $chart.Chart.Name }}-{{ $chart.Chart.Version }}
{{- end -}}

{{/* Labels of a pod: the component, its values. */}}
{{- define "gpushare.podLabels" -}}
{{- merge (dict "app.kubernetes.io/name" (index . 0) "app.kubernetes.io/part-of" "gpushare") (default dict (index . 1).podLabels) | toYaml -}}
{{- end -}}

{{/* Annotations of a pod, which restarts when its configuration changes: the configuration, the component's values. */}}
{{- define "gpushare.podAnnotations" -}}
{{- merge (dict "checksum/config" (sha256sum (index . 0))) (default dict (index . 1).podAnnotations) | toYaml -}}
{{- end -}}

{{/* Where a component's pods run: the chart, the component, its values, its own labels of nodes. */}}
{{- define "gpushare.pod" -}}
{{- $chart := index . 0 -}}
{{- $name := index . 1 -}}
{{- $values := index . 2 -}}
{{- with $chart.Values.imagePullSecrets }}
imagePullSecrets:
  {{- range . }}
  - name: {{ if kindIs "map" . }}{{ .name }}{{ else }}{{ . }}{{ end }}
  {{- end }}
{{- end }}
{{- with $values.priorityClassName }}
priorityClassName: {{ . }}
{{- end }}
{{- with merge (index . 3) (default dict $values.nodeSelector) }}
nodeSelector: {{- toYaml . | nindent 2 }}
{{- end }}
{{- with $values.tolerations }}
tolerations: {{- toYaml . | nindent 2 }}
{{- end }}
{{- if $values.affinity }}
affinity: {{- toYaml $values.affinity | nindent 2 }}
{{- else if hasKey $values "replicas" }}
affinity:
  podAntiAffinity:
    preferredDuringSchedulingIgnoredDuringExecution:
      - weight: 100
        podAffinityTerm:
          topologyKey: kubernetes.io/hostname
          labelSelector:
            matchLabels: {app.kubernetes.io/name: {{ $name }}}
{{- end }}
{{- with $values.topologySpreadConstraints }}
topologySpreadConstraints: {{- toYaml . | nindent 2 }}
{{- end }}
{{- end -}}

{{- /* The budget of a Deployment. A single pod has none, which would let no drain take it. */ -}}
{{- define "gpushare.budget" -}}
{{- $chart := index . 0 -}}
{{- if gt (int (index . 2).replicas) 1 }}
---
apiVersion: {{ ternary "policy/v1" "policy/v1beta1" (eq (include "gpushare.since" (list $chart "1.23")) "true") }}
kind: PodDisruptionBudget
metadata:
  name: {{ index . 1 }}
  namespace: gpushare-system
  labels: {{- include "gpushare.labels" (list $chart (index . 1)) | nindent 4 }}
spec:
  minAvailable: 1
  {{- if eq (include "gpushare.since" (list $chart "1.30")) "true" }}
  unhealthyPodEvictionPolicy: AlwaysAllow # a pod that is not ready anyway holds up no drain
  {{- end }}
  selector:
    matchLabels: {app.kubernetes.io/name: {{ index . 1 }}}
{{- end }}
{{- end -}}

{{/* A reference to an image: its values, the tag where they have none. */}}
{{- define "gpushare.reference" -}}
{{- $image := index . 0 -}}
{{- with $image.registry }}{{ . }}/{{ end -}}
{{- $image.repository -}}
{{- if $image.digest }}@{{ $image.digest }}{{ else }}:{{ default (index . 1) $image.tag }}{{ end -}}
{{- end -}}

{{- define "gpushare.image" -}}
{{- $_ := required "image.registry: name the registry from which your nodes pull gpushare's image; docker.io/library where the nodes have it already" .Values.image.registry -}}
image: {{ include "gpushare.reference" (list .Values.image .Chart.AppVersion) }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{- define "gpushare.schedulerImage" -}}
image: {{ include "gpushare.reference" (list .Values.scheduler.image (printf "v%s" (include "gpushare.kubeVersion" .))) }}
{{- with .Values.image.pullPolicy }}
imagePullPolicy: {{ . }}
{{- end }}
{{- end -}}

{{/* A component's settings and further variables. The last of equal names counts. */}}
{{- define "gpushare.env" -}}
{{- range $setting, $value := .settings }}
- name: GPUSHARE_{{ snakecase $setting | upper }}
  value: {{ ternary $value (toJson $value) (kindIs "string" $value) | quote }}
{{- end }}
{{- with .env }}
{{ toYaml . }}
{{- end }}
{{- end -}}

{{/* What all components must agree on. */}}
{{- define "gpushare.config" -}}
{{- $data := dict -}}
{{- range $setting, $value := .Values.settings -}}
  {{- $_ := set $data (printf "GPUSHARE_%s" (snakecase $setting | upper)) $value -}}
{{- end -}}
{{- if .Values.wholeGpus -}}{{- $_ := set $data "GPUSHARE_WHOLE_GPUS" "true" -}}{{- end -}}
{{- if not .Values.scheduler.enabled -}}{{- $_ := set $data "GPUSHARE_SCHEDULER_NAME" "" -}}{{- end -}}
{{- with ternary .Values.runtimeClass.mode "never" .Values.runtimeClass.enabled -}}
  {{- $_ := set $data "GPUSHARE_RUNTIME_CLASS_MODE" . -}}
{{- end -}}
{{- toYaml $data -}}
{{- end -}}

{{/* The profile of simulated GPUs; nothing for real ones. */}}
{{- define "gpushare.profile" -}}
{{- if eq .Values.gpus "simulated" -}}
{{- if .Values.simulatedGpus -}}
{{- toYaml .Values.simulatedGpus -}}
{{- else -}}
# Every node with the label gpushare=true gets these; `nodes: {NAME: {gpus: [...]}}` gives one node others.
# A GPU in MIG mode: {model: NVIDIA A100-SXM4-40GB, memoryMiB: 40960, mig: [{profile: 1g.5gb, memoryMiB: 4864}]}
gpus:
  - model: Tesla T4
    memoryMiB: 15360
    count: 4
{{- end -}}
{{- end -}}
{{- end -}}

{{- define "gpushare.schedulerConfig" -}}
{{- $version := "v1beta1" -}}
{{- if eq (include "gpushare.since" (list . "1.23")) "true" -}}{{- $version = "v1beta3" -}}{{- end -}}
{{- if eq (include "gpushare.since" (list . "1.25")) "true" -}}{{- $version = "v1" -}}{{- end -}}
apiVersion: kubescheduler.config.k8s.io/{{ $version }}
kind: KubeSchedulerConfiguration
percentageOfNodesToScore: 100
{{- if eq $version "v1beta1" }}
healthzBindAddress: 127.0.0.1:10251 # plain-text ports of old versions: only for the node itself
metricsBindAddress: 127.0.0.1:10251
{{- end }}
clientConnection:
  qps: 500
  burst: 1000
leaderElection:
  leaderElect: true
  resourceLock: leases
  resourceName: gpushare-scheduler
  resourceNamespace: gpushare-system
profiles:
  - schedulerName: gpushare-scheduler
extenders:
  - urlPrefix: http://gpushare-controller.gpushare-system.svc:12345/gpushare-scheduler
    filterVerb: filter
    prioritizeVerb: prioritize
    preemptVerb: preempt
    weight: 26
    bindVerb: bind
    enableHTTPS: false
    nodeCacheCapable: true
    managedResources:
      - name: aliyun.com/gpu-mem
        ignoredByScheduler: false
      - name: nano-gpu/gpu-percent
        ignoredByScheduler: false
      {{- if .Values.wholeGpus }}
      - name: nvidia.com/gpu
        ignoredByScheduler: false
      {{- end }}
    ignorable: false
    httpTimeout: 5s
{{- end -}}

{{/* GPU add-ons of the whole cluster need every GPU: their namespaces, as the values of a selector. */}}
{{- define "gpushare.exempt" -}}
{{- concat (list "kube-system" "gpushare-system") .Values.exemptNamespaces | toJson -}}
{{- end -}}

{{/* Whether r is a resource of another plugin that chooses devices, in CEL: the webhook's setting foreign-resources. */}}
{{- define "gpushare.foreign" -}}
{{- $terms := list -}}
{{- range splitList "," (dig "foreignResources" "nvidia.com/gpu,nvidia.com/gpu.shared,nvidia.com/mig-*" (default dict .Values.webhook.settings)) -}}
{{- with trim . -}}
{{- $terms = append $terms (ternary (printf "r.startsWith('%s')" (trimSuffix "*" .)) (printf "r == '%s'" .) (hasSuffix "*" .)) -}}
{{- end -}}
{{- end -}}
{{- default (list "false") $terms | join " || " -}}
{{- end -}}

{{/* Certificates of others: cert-manager writes the CA into the configurations, or the values have it. */}}
{{- define "gpushare.injectCa" -}}
{{- if eq .Values.certificates.source "cert-manager" -}}
annotations: {cert-manager.io/inject-ca-from: gpushare-system/gpushare-webhook}
{{- end -}}
{{- end -}}

{{- define "gpushare.caBundle" -}}
{{- if eq .Values.certificates.source "files" -}}
caBundle: {{ .Values.certificates.caBundle }}
{{- end -}}
{{- end -}}

{{/* CEL: whether a container of a pod names a resource r for which a condition holds. */}}
{{- define "gpushare.asks" -}}
object.spec.containers.exists(c, has(c.resources) && (
(has(c.resources.limits) && c.resources.limits.exists(r, {{ . }})) ||
(has(c.resources.requests) && c.resources.requests.exists(r, {{ . }}))))
|| (has(object.spec.initContainers) && object.spec.initContainers.exists(c, has(c.resources) && (
(has(c.resources.limits) && c.resources.limits.exists(r, {{ . }})) ||
(has(c.resources.requests) && c.resources.requests.exists(r, {{ . }})))))
{{- end -}}

{{/* CEL: whether an annotation k is part of a binding. */}}
{{- define "gpushare.isReserved" -}}
(k.startsWith('devices.gpushare.dev/') || k.startsWith('memory.gpushare.dev/')
|| k.startsWith('index.gpushare.dev/') || k.startsWith('capacity.gpushare.dev/') || k.startsWith('nano-gpu/container-')
|| k in ['gpushare.dev/allocation', 'gpushare.dev/bound-late', 'nano-gpu/assume',
'ALIYUN_COM_GPU_MEM_IDX', 'ALIYUN_COM_GPU_MEM_DEV', 'ALIYUN_COM_GPU_MEM_POD',
'ALIYUN_COM_GPU_MEM_ASSIGNED', 'ALIYUN_COM_GPU_MEM_ASSUME_TIME', 'scheduler.framework.gpushare.allocation',
'scheduler.framework.gpushare.assigned', 'scheduler.framework.gpushare.assume-time'])
{{- end -}}

{{/* CEL: the annotations that are part of a request. */}}
{{- define "gpushare.requestAnnotations" -}}
['gpushare.dev/gpus', 'gpushare.dev/gpu-policy', 'gpushare.dev/gpu-model', 'gpushare.dev/gpu-uuid', 'gpushare.dev/min-gpu-memory', 'gpushare.dev/limit', 'gpushare.dev/mig', 'gpushare.dev/oversubscription', 'gpushare.dev/same-gpu-as', 'gpushare.dev/other-gpu-than', 'gpushare.dev/limits-are-totals', 'gpushare.dev/overridden', 'gpushare.dev/hand-over']
{{- end -}}
