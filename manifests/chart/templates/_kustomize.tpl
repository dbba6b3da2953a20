{{/*
What kubectl makes of a kustomization below files/, which are the manifests beside this chart. It knows what they use:
bases, components, resources, patchesStrategicMerge, and patchesJson6902 that put a webhook first.

    .root     the chart
    .dir      the directory of the kustomization, below files/
    .objects  a dict that takes the objects, by kind, namespace and name
*/}}
{{- define "kustomize.build" -}}
{{- $objects := .objects -}}
{{- $kustomization := .root.Files.Get (printf "files/%s/kustomization.yaml" .dir) | fromYaml -}}
{{- if not $kustomization.kind -}}
  {{- fail (printf "files/%s is missing in this copy of the chart: it was made without following symbolic links. Use `helm package` in a checkout of the project, or a packaged chart" .dir) -}}
{{- end -}}
{{- range concat (default list $kustomization.bases) (default list $kustomization.components) -}}
  {{- include "kustomize.build" (dict "root" $.root "objects" $objects "dir" (clean (printf "%s/%s" $.dir .))) -}}
{{- end -}}
{{- range $kustomization.resources -}}
  {{- include "kustomize.add" (dict "root" $.root "objects" $objects "file" (printf "files/%s/%s" $.dir .)) -}}
{{- end -}}
{{- range $kustomization.patchesStrategicMerge -}}
  {{- include "kustomize.add" (dict "root" $.root "objects" $objects "file" (printf "files/%s/%s" $.dir .)) -}}
{{- end -}}
{{- range $kustomization.patchesJson6902 -}}
  {{- $object := get $objects (printf "%s//%s" .target.kind .target.name) -}}
  {{- range $.root.Files.Get (printf "files/%s/%s" $.dir .path) | fromYamlArray -}}
    {{- if ne (printf "%s %s" .op .path) "add /webhooks/0" -}}{{- fail (printf "unknown patch: %s %s" .op .path) -}}{{- end -}}
    {{- $_ := set $object "webhooks" (prepend $object.webhooks .value) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* Adds the objects of .file to .objects, or merges them into those that are there. */}}
{{- define "kustomize.add" -}}
{{- range regexSplit "(?m)^---\\s*$" (.root.Files.Get .file) -1 -}}
  {{- $object := fromYaml . -}}
  {{- if $object.kind -}}
    {{- $key := printf "%s/%s/%s" $object.kind (default "" $object.metadata.namespace) $object.metadata.name -}}
    {{- if hasKey $.objects $key -}}
      {{- include "kustomize.merge" (dict "into" (get $.objects $key) "from" $object) -}}
    {{- else -}}
      {{- $_ := set $.objects $key $object -}}
    {{- end -}}
  {{- else if $object.Error -}}
    {{- fail (printf "%s: %s" $.file $object.Error) -}}
  {{- end -}}
{{- end -}}
{{- end -}}

{{/* A strategic merge: lists of named things are merged by name, volume mounts by path, other lists are replaced. */}}
{{- define "kustomize.merge" -}}
{{- range $key, $value := .from -}}
  {{- $old := get $.into $key -}}
  {{- if and (kindIs "map" $value) (kindIs "map" $old) -}}
    {{- include "kustomize.merge" (dict "into" $old "from" $value) -}}
  {{- else if and (kindIs "slice" $value) (kindIs "slice" $old) (kindIs "map" (first $value)) -}}
    {{- $by := ternary "mountPath" "name" (eq $key "volumeMounts") -}}
    {{- $merged := $old -}}
    {{- range $item := $value -}}
      {{- $found := dict -}}
      {{- range $old -}}{{- if eq (get . $by) (get $item $by) -}}{{- $found = . -}}{{- end -}}{{- end -}}
      {{- if $found -}}
        {{- include "kustomize.merge" (dict "into" $found "from" $item) -}}
      {{- else -}}
        {{- $merged = append $merged $item -}}
      {{- end -}}
    {{- end -}}
    {{- $_ := set $.into $key $merged -}}
  {{- else -}}
    {{- $_ := set $.into $key $value -}}
  {{- end -}}
{{- end -}}
{{- end -}}
