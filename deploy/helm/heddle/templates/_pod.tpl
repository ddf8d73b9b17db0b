{{- define "heddle.pod" -}}
metadata:
  labels:
    {{- include "heddle.selector" . | nindent 4 }}
    {{- with .Values.podLabels }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
  annotations:
    # A changed setting starts the servers anew.
    checksum/settings: {{ include (print .Template.BasePath "/settings.yaml") . | sha256sum }}
    {{- with .Values.podAnnotations }}
    {{- toYaml . | nindent 4 }}
    {{- end }}
spec:
  # Otherwise a Service named heddle would set HEDDLE_PORT to an address.
  enableServiceLinks: false
  automountServiceAccountToken: false
  # Above the sleep of preStop and shutdown_grace together.
  terminationGracePeriodSeconds: {{ add 30 (int (.Values.settings.shutdown_grace | default 30)) }}
  securityContext:
    {{- include "heddle.podSecurity" . | nindent 4 }}
  {{- with .Values.imagePullSecrets }}
  imagePullSecrets:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.nodeSelector }}
  nodeSelector:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.tolerations }}
  tolerations:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- with .Values.affinity }}
  affinity:
    {{- toYaml . | nindent 4 }}
  {{- end }}
  {{- if eq .Values.mode "scaled" }}
  topologySpreadConstraints:
    - maxSkew: 1
      topologyKey: kubernetes.io/hostname
      whenUnsatisfiable: ScheduleAnyway
      labelSelector:
        matchLabels:
          {{- include "heddle.selector" . | nindent 10 }}
  {{- end }}
  containers:
    - name: heddle
      {{- with .Values.image }}
      image: {{ .repository }}{{ if .digest }}@{{ .digest }}{{ else }}:{{ .tag }}{{ end }}
      imagePullPolicy: {{ .pullPolicy }}
      {{- end }}
      envFrom:
        - configMapRef:
            name: {{ include "heddle.name" . }}
        {{- if .Values.secrets }}
        - secretRef:
            name: {{ include "heddle.name" . }}
        {{- end }}
        {{- with .Values.existingSecret }}
        - secretRef:
            name: {{ . }}
        {{- end }}
      {{- with .Values.firstKey }}
      {{- if or .value .existingSecret }}
      env:
        - name: HEDDLE_BOOTSTRAP_KEY
          valueFrom:
            secretKeyRef:
              name: {{ .existingSecret | default (printf "%s-first-key" (include "heddle.name" $)) }}
              key: {{ if .existingSecret }}{{ .key }}{{ else }}key{{ end }}
      {{- end }}
      {{- end }}
      ports:
        - name: http
          containerPort: 8470
        {{- with int .Values.otlpGrpcPort }}
        - name: otlp-grpc
          containerPort: {{ . }}
        {{- end }}
      startupProbe:
        httpGet:
          path: /health
          port: http
        periodSeconds: 2
        failureThreshold: 90
      livenessProbe:
        httpGet:
          path: /health
          port: http
        periodSeconds: 10
        timeoutSeconds: 5
        failureThreshold: 6
      readinessProbe:
        httpGet:
          path: /ready
          port: http
        periodSeconds: 2
        timeoutSeconds: 5
        failureThreshold: 2
      {{- if eq .Values.mode "scaled" }}
      lifecycle:
        preStop:
          # Balancers need a moment to hear that this server goes.
          exec:
            command: ["sleep", "5"]
      {{- end }}
      resources:
        {{- toYaml .Values.resources | nindent 8 }}
      securityContext:
        {{- include "heddle.containerSecurity" . | nindent 8 }}
      volumeMounts:
        - name: data
          mountPath: /data
        - name: tmp
          mountPath: /tmp
  volumes:
    {{- if eq .Values.mode "scaled" }}
    - name: data
      persistentVolumeClaim:
        claimName: {{ include "heddle.claim" . }}
    {{- end }}
    # Uploads wait here until their digest is known.
    - name: tmp
      emptyDir:
        sizeLimit: {{ .Values.temporarySize }}
{{- end }}
