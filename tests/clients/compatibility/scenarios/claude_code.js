// Claude Code as it comes from npm, told nothing but the address, the key and the model.
const {execFileSync} = require('child_process');
const fs = require('fs');
const path = require('path');

const folder = path.join(process.env.SCENARIO_FOLDER, 'work');
fs.mkdirSync(folder);
const environment = {
  ...process.env,
  ANTHROPIC_BASE_URL: process.env.HEDDLE_URL,
  ANTHROPIC_AUTH_TOKEN: process.env.ANTHROPIC_API_KEY,
  ANTHROPIC_MODEL: 'heddle-tiny',
  ANTHROPIC_DEFAULT_HAIKU_MODEL: 'heddle-tiny',
  ANTHROPIC_CUSTOM_HEADERS: `OpenAI-Project: ${process.env.SCENARIO_PROJECT}`,
  CLAUDE_CODE_ENABLE_TELEMETRY: '1',
  OTEL_LOGS_EXPORTER: 'otlp',
  OTEL_METRICS_EXPORTER: 'otlp',
  OTEL_EXPORTER_OTLP_PROTOCOL: 'http/protobuf',
  OTEL_LOG_USER_PROMPTS: '1',
};
delete environment.ANTHROPIC_API_KEY;
const program = path.join(process.env.NODE_PATH, '.bin', 'claude');
const task = `Work in ${folder}. Take the nine steps.`;
const words = ['-p', task, '--allowedTools', 'Bash', 'Write', '--output-format', 'json'];
const said = JSON.parse(execFileSync(program, words, {cwd: folder, env: environment, input: '', timeout: 150000}));
report(said.result, said.session_id);

function report(answer, session) {
  const files = {};
  for (const name of ['notes/all.txt', 'one.txt', 'two.txt']) files[name] = fs.readFileSync(path.join(folder, name), 'utf8');
  console.log('RESULT ' + JSON.stringify({answer, files, session}));
}
