{{/*
What the values say of every Deployment and DaemonSet.

    .root     the chart
    .objects  all objects
*/}}
{{- define "gpushare.workloads" -}}
{{- $root := .root -}}
{{- $components := dict "gpushare-webhook" "webhook" "gpushare-controller" "controller" "gpushare-scheduler" "scheduler" "gpushare-device-plugin" "devicePlugin" "gpushare-mps" "mps" "gpushare-dashboard" "dashboard" -}}
{{- $shared := toJson (get .objects "ConfigMap/gpushare-system/gpushare-config").data -}}
{{- range $key, $object := .objects -}}
  {{- if has $object.kind (list "Deployment" "DaemonSet") -}}
    {{- $name := $object.metadata.name -}}
    {{- $values := get $root.Values (get $components $name) -}}
    {{- $pod := $object.spec.template.spec -}}
    {{- $container := first $pod.containers -}}
    {{- if eq $name "gpushare-scheduler" -}}
      {{- $_ := set $container "image" (include "gpushare.image" (dict "image" $values.image "tag" (printf "v%s" (include "gpushare.kubeVersion" $root)))) -}}
    {{- else -}}
      {{- $_ := set $container "image" (include "gpushare.image" (dict "image" $root.Values.image "tag" $root.Chart.AppVersion)) -}}
    {{- end -}}
    {{- with $root.Values.image.pullPolicy -}}{{- $_ := set $container "imagePullPolicy" . -}}{{- end -}}
    {{- with $root.Values.imagePullSecrets -}}
      {{- $secrets := list -}}
      {{- range . -}}{{- $secrets = append $secrets (dict "name" .) -}}{{- end -}}
      {{- $_ := set $pod "imagePullSecrets" $secrets -}}
    {{- end -}}
    {{- /* Helm 3 keeps the nulls of values.yaml, and Helm 4 those of a file of values. */ -}}
    {{- range list "replicas" "priorityClassName" "tolerations" "affinity" "topologySpreadConstraints" -}}
      {{- $value := index $values . -}}
      {{- if not (kindIs "invalid" $value) -}}{{- $_ := set (ternary $object.spec $pod (eq . "replicas")) . $value -}}{{- end -}}
    {{- end -}}
    {{- /* A budget for a single pod would let no drain take it. */ -}}
    {{- if eq (print $object.spec.replicas) "1" -}}{{- $_ := unset $.objects (printf "PodDisruptionBudget/gpushare-system/%s" $name) -}}{{- end -}}
    {{- include "gpushare.into" (dict "in" $pod "key" "nodeSelector" "from" $values.nodeSelector) -}}
    {{- include "gpushare.into" (dict "in" $container "key" "resources" "from" $values.resources) -}}
    {{- include "gpushare.into" (dict "in" $object.spec.template.metadata "key" "labels" "from" $values.podLabels) -}}
    {{- $configuration := $shared -}}
    {{- if eq $name "gpushare-scheduler" -}}
      {{- $configuration = toJson (get $.objects "ConfigMap/gpushare-system/gpushare-scheduler").data -}}
    {{- else if eq $name "gpushare-device-plugin" -}}
      {{- with get $.objects "ConfigMap/gpushare-system/gpushare-simulated-gpus" -}}{{- $configuration = print $shared (toJson .data) -}}{{- end -}}
    {{- end -}}
    {{- $annotations := merge (dict "checksum/config" (sha256sum $configuration)) (default dict $values.podAnnotations) -}}
    {{- include "gpushare.into" (dict "in" $object.spec.template.metadata "key" "annotations" "from" $annotations) -}}
    {{- $env := default list $container.env -}}
    {{- range $setting, $value := $values.settings -}}
      {{- $env = append $env (dict "name" (printf "GPUSHARE_%s" (snakecase $setting | upper)) "value" (include "gpushare.written" $value)) -}}
    {{- end -}}
    {{- range $values.env -}}{{- $env = append $env . -}}{{- end -}}
    {{- if $env -}}{{- $_ := set $container "env" $env -}}{{- end -}}
    {{- range $values.volumes -}}{{- $_ := set $pod "volumes" (append $pod.volumes .) -}}{{- end -}}
    {{- range $values.volumeMounts -}}{{- $_ := set $container "volumeMounts" (append $container.volumeMounts .) -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Merges the dict .from into the entry .key of .in; nothing if it is empty. */}}
{{- define "gpushare.into" -}}
{{- if .from -}}
  {{- $_ := set .in .key (mergeOverwrite (default dict (get .in .key)) .from) -}}
{{- end -}}
{{- end -}}

{{/*
The device plugin and the MPS daemon: the kubelet's directory, and the RuntimeClass that brings the driver. No kubelet has
its directory for device plugins anywhere but in /var/lib/kubelet.
*/}}
{{- define "gpushare.nodes" -}}
{{- $values := .root.Values -}}
{{- range list "gpushare-device-plugin" "gpushare-mps" -}}
  {{- with get $.objects (printf "DaemonSet/gpushare-system/%s" .) -}}
    {{- $pod := .spec.template.spec -}}
    {{- range $pod.volumes -}}
      {{- if .hostPath -}}
        {{- $_ := set .hostPath "path" (regexReplaceAll "^/var/lib/kubelet/pod-resources" .hostPath.path (printf "%s/pod-resources" (trimSuffix "/" $values.devicePlugin.kubeletDirectory))) -}}
      {{- end -}}
    {{- end -}}
    {{- if not $values.runtimeClass.enabled -}}{{- $_ := unset $pod "runtimeClassName" -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
