// The unmodified OpenTelemetry SDK and one of its OTLP exporters, as a program sets them up.
const {SpanKind, SpanStatusCode, trace, context} = require('@opentelemetry/api');
const {resourceFromAttributes} = require('@opentelemetry/resources');
const {BasicTracerProvider, BatchSpanProcessor} = require('@opentelemetry/sdk-trace-base');

const {OTLPTraceExporter} = require(process.env.EXPORTER);
const headers = {project_id: process.env.SCENARIO_PROJECT, 'wandb-api-key': process.env.WANDB_API_KEY};
// With OTEL_EXPORTER_OTLP_ENDPOINT the exporter finds the address by itself.
const url = process.env.OTEL_EXPORTER_OTLP_ENDPOINT ? undefined : process.env.WF_TRACE_SERVER_URL + '/otel/v1/traces';
const exporter = new OTLPTraceExporter({url, headers, compression: process.env.COMPRESSION});

/** The exporter hides refusals; what it was told is noted here. */
const results = [];
const send = exporter.export.bind(exporter);
exporter.export = (spans, done) => send(spans, result => {
  results.push({code: result.code, error: result.error ? String(result.error) : null});
  done(result);
});

async function main() {
  const provider = new BasicTracerProvider({
    resource: resourceFromAttributes({'service.name': 'node-svc'}),
    spanProcessors: [new BatchSpanProcessor(exporter)],
  });
  const tracer = provider.getTracer('node-tracer', '2.0');
  const outer = tracer.startSpan('outer', {attributes: {'gen_ai.conversation.id': 'conv-n', 'input.value': 'in'}});
  const inside = trace.setSpan(context.active(), outer);
  const chat = tracer.startSpan('chat tiny', {
    kind: SpanKind.CLIENT,
    attributes: {
      'gen_ai.operation.name': 'chat',
      'gen_ai.provider.name': 'openai',
      'gen_ai.request.model': 'tiny',
      'gen_ai.usage.input_tokens': 30,
      'gen_ai.usage.output_tokens': 4,
      'gen_ai.usage.cache_read.input_tokens': 20,
      'gen_ai.input.messages': JSON.stringify([{role: 'user', parts: [{type: 'text', content: 'hi'}]}]),
      'gen_ai.output.messages': JSON.stringify([{role: 'assistant', parts: [{type: 'text', content: 'yo'}]}]),
      share: 0.5,
      tags: ['a', 'b'],
      yes: true,
    },
  }, inside);
  chat.addEvent('ev', {a: 1});
  chat.end();
  const failed = tracer.startSpan('failing', {}, inside);
  failed.recordException(new TypeError('no such thing'));
  failed.setStatus({code: SpanStatusCode.ERROR, message: 'no such thing'});
  failed.end();
  outer.setAttribute('output.value', 'out');
  outer.end();
  await provider.forceFlush();
  await provider.shutdown();
  console.log('RESULT ' + JSON.stringify({results}));
}

main();
