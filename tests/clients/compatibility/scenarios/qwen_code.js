// Qwen Code as it comes from npm, told nothing but the address, the key and the model.
const {execFileSync} = require('child_process');
const fs = require('fs');
const path = require('path');

const folder = path.join(process.env.SCENARIO_FOLDER, 'work');
const home = path.join(process.env.HOME, '.qwen');
fs.mkdirSync(folder);
fs.mkdirSync(home);
const telemetry = {
  enabled: true,
  otlpEndpoint: process.env.HEDDLE_URL,
  otlpProtocol: 'http',
  includeSensitiveSpanAttributes: true,
};
const settings = {telemetry, security: {auth: {selectedType: 'openai'}}, model: {name: 'heddle-tiny'}};
fs.writeFileSync(path.join(home, 'settings.json'), JSON.stringify(settings));
const program = path.join(process.env.NODE_PATH, '.bin', 'qwen');
const task = `Work in ${folder}. Take the nine steps.`;
const words = [program, '--approval-mode', 'yolo', '--output-format', 'json', task];
const output = execFileSync(process.execPath, words, {cwd: folder, input: '', timeout: 150000, encoding: 'utf8', stdio: 'pipe'});
const said = JSON.parse(output).at(-1);
const files = {};
for (const name of ['notes/all.txt', 'one.txt', 'two.txt']) files[name] = fs.readFileSync(path.join(folder, name), 'utf8');
console.log('RESULT ' + JSON.stringify({answer: said.result, files, session: said.session_id}));
