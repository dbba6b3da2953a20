{{/* The cluster's version, as 1.30.4. */}}
{{- define "gpushare.kubeVersion" -}}
{{- regexFind "[0-9]+\\.[0-9]+\\.[0-9]+" (default .Capabilities.KubeVersion.Version .Values.kubeVersion) -}}
{{- end -}}

{{/* Which of files/servers is for the cluster's version. */}}
{{- define "gpushare.servers" -}}
{{- $version := include "gpushare.kubeVersion" . -}}
{{- $chosen := "1.20" -}}
{{- range list "1.23" "1.25" "1.30" -}}
  {{- if semverCompare (printf ">=%s.0" .) $version -}}{{- $chosen = . -}}{{- end -}}
{{- end -}}
{{- $chosen -}}
{{- end -}}

{{/* A reference to an image: .image as in the values, .tag where they have none. */}}
{{- define "gpushare.image" -}}
{{- with .image.registry }}{{ . }}/{{ end -}}
{{- .image.repository -}}
{{- if .image.digest }}@{{ .image.digest }}{{ else }}:{{ default .tag .image.tag }}{{ end -}}
{{- end -}}

{{/* A setting's value as a variable has it. */}}
{{- define "gpushare.written" -}}
{{- if kindIs "string" . }}{{ . }}{{ else }}{{ toJson . }}{{ end -}}
{{- end -}}

{{/* The names of an object's kinds where Prometheus runs, as a selector of namespaces. */}}
{{- define "gpushare.namespaces" -}}
{{- dict "namespaceSelector" (dict "matchExpressions" (list (dict "key" "kubernetes.io/metadata.name" "operator" "In" "values" .))) | toJson -}}
{{- end -}}
