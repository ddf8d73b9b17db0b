{{- define "heddle.name" -}}
{{- .Release.Name | trunc 50 | trimSuffix "-" -}}
{{- end }}

{{- define "heddle.selector" -}}
app.kubernetes.io/name: heddle
app.kubernetes.io/instance: {{ include "heddle.name" . }}
app.kubernetes.io/component: server
{{- end }}

{{- define "heddle.trainerSelector" -}}
app.kubernetes.io/name: heddle
app.kubernetes.io/instance: {{ include "heddle.name" . }}
app.kubernetes.io/component: trainer
{{- end }}

{{- define "heddle.labels" -}}
app.kubernetes.io/name: heddle
app.kubernetes.io/instance: {{ include "heddle.name" . }}
{{- end }}

{{- define "heddle.claim" -}}
{{ .Values.persistence.existingClaim | default (printf "%s-data" (include "heddle.name" .)) }}
{{- end }}

{{- define "heddle.claimSpec" -}}
accessModes: [{{ if eq .Values.mode "scaled" }}"ReadWriteMany"{{ else }}"ReadWriteOnce"{{ end }}]
{{- with .Values.persistence.storageClass }}
storageClassName: {{ . | quote }}
{{- end }}
resources:
  requests:
    storage: {{ .Values.persistence.size }}
{{- end }}

{{/* The settings that follow from other values, below those that are given. */}}
{{- define "heddle.settings" -}}
{{- $found := dict "auth" "on" -}}
{{- with .Values.ingress -}}
{{- if .enabled -}}
{{- $path := trimSuffix "/" .path -}}
{{- $_ := set $found "public_url" (printf "%s://%s%s" (ternary "https" "http" (ne .tlsSecret "")) .host $path) -}}
{{- if $path -}}{{- $_ := set $found "root_path" $path -}}{{- end -}}
{{- end -}}
{{- end -}}
{{- with int .Values.otlpGrpcPort -}}{{- $_ := set $found "otlp_grpc_port" . -}}{{- end -}}
{{- toYaml (mergeOverwrite $found .Values.settings) -}}
{{- end }}

{{/* The text of a value: helm reads `on` as a boolean, and whole numbers as floats. */}}
{{- define "heddle.text" -}}
{{- if kindIs "bool" . -}}{{ ternary "on" "off" . }}
{{- else if and (kindIs "float64" .) (eq . (floor .)) -}}{{ int64 . }}
{{- else -}}{{ . }}{{- end -}}
{{- end }}

{{- define "heddle.podSecurity" -}}
runAsNonRoot: true
runAsUser: 10001
runAsGroup: 10001
fsGroup: 10001
fsGroupChangePolicy: OnRootMismatch
seccompProfile:
  type: RuntimeDefault
{{- end }}

{{- define "heddle.containerSecurity" -}}
allowPrivilegeEscalation: false
readOnlyRootFilesystem: true
capabilities:
  drop: ["ALL"]
{{- end }}
