{{/* Settings that all components share, simulated GPUs, and the RuntimeClass. */}}
{{- define "gpushare.config" -}}
{{- $values := .root.Values -}}
{{- $data := (get .objects "ConfigMap/gpushare-system/gpushare-config").data -}}
{{- range $setting, $value := $values.settings -}}
  {{- $_ := set $data (printf "GPUSHARE_%s" (snakecase $setting | upper)) (include "gpushare.written" $value) -}}
{{- end -}}
{{- if not $values.scheduler.enabled -}}{{- $_ := set $data "GPUSHARE_SCHEDULER_NAME" "" -}}{{- end -}}
{{- if not $values.runtimeClass.enabled -}}
  {{- $_ := set $data "GPUSHARE_RUNTIME_CLASS_MODE" "never" -}}
{{- else if $values.runtimeClass.mode -}}
  {{- $_ := set $data "GPUSHARE_RUNTIME_CLASS_MODE" $values.runtimeClass.mode -}}
{{- end -}}
{{- with get .objects "ConfigMap/gpushare-system/gpushare-simulated-gpus" -}}
  {{- if $values.simulatedGpus -}}{{- $_ := set .data "profile.yaml" (toYaml $values.simulatedGpus) -}}{{- end -}}
{{- end -}}
{{- with get .objects "RuntimeClass//nvidia" -}}
  {{- if $values.runtimeClass.handler -}}{{- $_ := set . "handler" $values.runtimeClass.handler -}}{{- end -}}
  {{- $_ := set .metadata "annotations" (dict "helm.sh/resource-policy" "keep") -}}
{{- end -}}
{{- with get .objects "ConfigMap/gpushare-system/gpushare-runtime-class" -}}
  {{- if $values.runtimeClass.refuse -}}{{- $_ := set .data "refuse" $values.runtimeClass.refuse -}}{{- end -}}
  {{- if $values.runtimeClass.names -}}{{- $_ := set .data "names" (join "," $values.runtimeClass.names) -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* How many pods ask an autoscaler for a node. */}}
{{- define "gpushare.placeholders" -}}
{{- $most := print .root.Values.placeholders -}}
{{- with get .objects "ResourceQuota/gpushare-placeholders/gpushare-placeholders" -}}
  {{- $_ := set .spec.hard "pods" $most -}}
  {{- range (first (get $.objects "Deployment/gpushare-system/gpushare-controller").spec.template.spec.containers).env -}}
    {{- if eq .name "GPUSHARE_PLACEHOLDERS" -}}{{- $_ := set . "value" $most -}}{{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Removes what the values leave out. */}}
{{- define "gpushare.leaveOut" -}}
{{- $values := .root.Values -}}
{{- range $key, $object := .objects -}}
  {{- $kind := $object.kind -}}
  {{- $out := false -}}
  {{- if and (hasPrefix "gpushare-scheduler" $object.metadata.name) (not $values.scheduler.enabled) -}}{{- $out = true -}}{{- end -}}
  {{- if and (eq $kind "Namespace") (eq $object.metadata.name "gpushare-system") (not $values.namespace.create) -}}{{- $out = true -}}{{- end -}}
  {{- if and (eq $object.metadata.name "gpushare-critical-pods") (not $values.namespace.quota) -}}{{- $out = true -}}{{- end -}}
  {{- if and (eq $kind "NetworkPolicy") (not $values.networkPolicy.enabled) -}}{{- $out = true -}}{{- end -}}
  {{- if and (eq $kind "RuntimeClass") (not (and $values.runtimeClass.enabled $values.runtimeClass.create)) -}}{{- $out = true -}}{{- end -}}
  {{- if $out -}}{{- $_ := unset $.objects $key -}}{{- end -}}
{{- end -}}
{{- end -}}

{{/* The namespaces of GPU add-ons, in every selector that leaves them alone. */}}
{{- define "gpushare.exempt" -}}
{{- $namespaces := concat (list "kube-system" "gpushare-system") .root.Values.exemptNamespaces -}}
{{- range .objects -}}
  {{- $selectors := list -}}
  {{- range .webhooks -}}{{- $selectors = append $selectors .namespaceSelector -}}{{- end -}}
  {{- if eq .kind "ValidatingAdmissionPolicyBinding" -}}
    {{- with .spec.matchResources -}}{{- $selectors = append $selectors .namespaceSelector -}}{{- end -}}
  {{- end -}}
  {{- range $selectors -}}
    {{- range .matchExpressions -}}
      {{- if has "gpu-operator" .values -}}{{- $_ := set . "values" $namespaces -}}{{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Whom the NetworkPolicies let in beside the second scheduler: Prometheus to the metrics, the control plane. */}}
{{- define "gpushare.network" -}}
{{- $values := .root.Values.networkPolicy -}}
{{- $blocks := list -}}
{{- range $values.controlPlane -}}{{- $blocks = append $blocks (dict "ipBlock" (dict "cidr" .)) -}}{{- end -}}
{{- range $name, $ports := dict "gpushare-controller" (list "probes" "http") "gpushare-device-plugin" (list "metrics" "metrics") -}}
  {{- with get $.objects (printf "NetworkPolicy/gpushare-system/%s" $name) -}}
    {{- $rules := .spec.ingress -}}
    {{- with $values.prometheusNamespaces -}}
      {{- $from := list (include "gpushare.namespaces" . | fromJson) -}}
      {{- $rules = append $rules (dict "from" $from "ports" (list (dict "port" (first $ports) "protocol" "TCP"))) -}}
    {{- end -}}
    {{- with $blocks -}}
      {{- $rules = append $rules (dict "from" . "ports" (list (dict "port" (last $ports) "protocol" "TCP"))) -}}
    {{- end -}}
    {{- $_ := set .spec "ingress" $rules -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Certificates that another makes: the webhook reads them from a Secret, and may write neither that nor the CA. */}}
{{- define "gpushare.certificates" -}}
{{- $certificates := .root.Values.certificates -}}
{{- if ne $certificates.source "self" -}}
  {{- $pod := (get .objects "Deployment/gpushare-system/gpushare-webhook").spec.template.spec -}}
  {{- $container := first $pod.containers -}}
  {{- $_ := set $container "env" (append (default list $container.env) (dict "name" "GPUSHARE_CERT_SOURCE" "value" "files")) -}}
  {{- range $container.volumeMounts -}}{{- if eq .name "certs" -}}{{- $_ := set . "readOnly" true -}}{{- end -}}{{- end -}}
  {{- $volumes := list -}}
  {{- range $pod.volumes -}}
    {{- $volumes = append $volumes (ternary (dict "name" "certs" "secret" (dict "secretName" $certificates.secretName)) . (eq .name "certs")) -}}
  {{- end -}}
  {{- $_ := set $pod "volumes" $volumes -}}
  {{- range list "ClusterRole//gpushare-webhook" "Role/gpushare-system/gpushare-webhook" -}}
    {{- $role := get $.objects . -}}
    {{- $rules := list -}}
    {{- range $role.rules -}}
      {{- if not (or (has "secrets" .resources) (has "admissionregistration.k8s.io" .apiGroups)) -}}{{- $rules = append $rules . -}}{{- end -}}
    {{- end -}}
    {{- $_ := set $role "rules" $rules -}}
  {{- end -}}
  {{- range $.objects -}}
    {{- if .webhooks -}}
      {{- if eq $certificates.source "cert-manager" -}}
        {{- $_ := set .metadata "annotations" (dict "cert-manager.io/inject-ca-from" "gpushare-system/gpushare-webhook") -}}
      {{- else -}}
        {{- range .webhooks -}}{{- $_ := set .clientConfig "caBundle" $certificates.caBundle -}}{{- end -}}
      {{- end -}}
    {{- end -}}
  {{- end -}}
{{- end -}}
{{- end -}}
