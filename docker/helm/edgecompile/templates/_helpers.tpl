{{- define "edgecompile.name" -}}
{{- .Release.Name | trunc 63 | trimSuffix "-" -}}
{{- end }}

{{- define "edgecompile.selector" -}}
app.kubernetes.io/name: edgecompile
app.kubernetes.io/instance: {{ .Release.Name }}
{{- end }}

{{- define "edgecompile.labels" -}}
{{ include "edgecompile.selector" . }}
app.kubernetes.io/managed-by: {{ .Release.Service }}
helm.sh/chart: {{ .Chart.Name }}-{{ .Chart.Version }}
{{- end }}
