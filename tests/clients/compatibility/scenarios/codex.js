// Codex CLI as it comes from npm, told nothing but the address, the key and the model.
const {execFileSync} = require('child_process');
const fs = require('fs');
const path = require('path');

const url = process.env.HEDDLE_URL;
const folder = path.join(process.env.SCENARIO_FOLDER, 'work');
const home = path.join(process.env.SCENARIO_FOLDER, 'codex');
fs.mkdirSync(folder);
fs.mkdirSync(home);
const project = `{"OpenAI-Project" = "${process.env.SCENARIO_PROJECT}"}`;
const otlp = signal =>
  `{otlp-http = {endpoint = "${url}/v1/${signal}", protocol = "binary", headers = {"project_id" = "${process.env.SCENARIO_PROJECT}"}}}`;
fs.writeFileSync(path.join(home, 'config.toml'), `
model = "heddle-tiny"
model_provider = "heddle"
[model_providers.heddle]
name = "heddle"
base_url = "${url}/v1"
env_key = "OPENAI_API_KEY"
wire_api = "responses"
http_headers = ${project}
[otel]
log_user_prompt = true
exporter = ${otlp('logs')}
trace_exporter = ${otlp('traces')}
metrics_exporter = ${otlp('metrics')}
`);
const program = path.join(process.env.NODE_PATH, '.bin', 'codex');
const task = `Work in ${folder}. Take the nine steps.`;
const words = ['exec', '--json', '--skip-git-repo-check', '--dangerously-bypass-approvals-and-sandbox', task];
const environment = {...process.env, CODEX_HOME: home};
const output = execFileSync(program, words, {cwd: folder, env: environment, input: '', timeout: 150000, encoding: 'utf8', stdio: 'pipe'});
const events = output.split('\n').filter(line => line.startsWith('{')).map(line => JSON.parse(line));
const started = events.find(event => event.type === 'thread.started');
const said = events.filter(event => event.type === 'item.completed' && event.item.type === 'agent_message');
const files = {};
for (const name of ['notes/all.txt', 'one.txt', 'two.txt']) files[name] = fs.readFileSync(path.join(folder, name), 'utf8');
console.log('RESULT ' + JSON.stringify({answer: said[said.length - 1].item.text, files, session: started.thread_id}));
