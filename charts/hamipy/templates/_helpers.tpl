{{/* Names are fixed: hamipy has cluster-wide parts, of which a cluster can have one set. */}}
{{- define "hamipy.domain" -}}hamipy.io{{- end }}
{{- define "hamipy.schedulerName" -}}hamipy-scheduler{{- end }}
{{- define "hamipy.leaseName" -}}hamipy-scheduler{{- end }}
{{- define "hamipy.schedulerUser" -}}system:serviceaccount:{{ .Release.Namespace }}:hamipy-scheduler{{- end }}
{{- define "hamipy.nodeUser" -}}system:serviceaccount:{{ .Release.Namespace }}:hamipy-node{{- end }}
{{- define "hamipy.uninstallUser" -}}system:serviceaccount:{{ .Release.Namespace }}:hamipy-uninstall{{- end }}

{{- define "hamipy.labels" -}}
app.kubernetes.io/name: hamipy
app.kubernetes.io/instance: {{ .Release.Name }}
app.kubernetes.io/version: {{ .Chart.AppVersion | quote }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ printf "%s-%s" .Chart.Name .Chart.Version }}
{{- end }}

{{/* (list root component): what selects the pods of a component. */}}
{{- define "hamipy.selector" -}}
app.kubernetes.io/name: hamipy
app.kubernetes.io/instance: {{ (index . 0).Release.Name }}
app.kubernetes.io/component: {{ index . 1 }}
{{- end }}

{{- define "hamipy.image" -}}
{{ .Values.image.repository }}:{{ .Values.image.tag | default .Chart.AppVersion }}
{{- end }}

{{/* v1.31.4+k3s1, v1.30.2-eks-1 -> v1.31.4, v1.30.2: the tags that upstream publishes */}}
{{- define "hamipy.kubeSchedulerImage" -}}
{{- $tag := .Values.kubeScheduler.image.tag | default (regexFind "^v[0-9]+[.][0-9]+[.][0-9]+" .Capabilities.KubeVersion.Version) -}}
{{ .Values.kubeScheduler.image.repository }}:{{ $tag }}
{{- end }}

{{- define "hamipy.vendors" -}}
{{- $names := .Values.vendors.others -}}
{{- if .Values.vendors.mock.enabled }}{{ $names = append $names "mock" }}{{ end -}}
{{- if not $names }}
{{- fail "vendors: none is enabled, so there is nothing to share; set vendors.mock.enabled=true to try hamipy without hardware, or name the vendor packages of your image in vendors.others" }}
{{- end -}}
{{ $names | uniq | sortAlpha | join "," }}
{{- end }}

{{/*
CEL, true for a pod that asks for our resources. `hamipy.io/` is enough also for other families' names in the policies,
which run after the webhook has added hamipy.io/device.
*/}}
{{- define "hamipy.mentions" -}}
(object.spec.containers + object.spec.?initContainers.orValue([])).exists(c, [c.?resources.limits.orValue({}), c.?resources.requests.orValue({})].exists(m, m.exists(k, k.startsWith('{{ include "hamipy.domain" . }}/'))))
{{- end }}
