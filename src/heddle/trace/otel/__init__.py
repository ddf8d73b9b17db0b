"""OpenTelemetry: spans become calls, by the convention of whoever made them."""
