// A provider of OpenID Connect with three people: node oidc_provider.mjs MODULE PORT CLIENT_ADDRESS
import { createServer } from "node:http";
import { pathToFileURL } from "node:url";

const [module, port, client] = process.argv.slice(2);
const { default: Provider } = await import(pathToFileURL(`${module}/lib/index.js`).href);
const GROUPS = { ann: ["platform"], bob: ["ml", "other"], eve: ["guests"] };

const provider = new Provider(`http://127.0.0.1:${port}`, {
  clients: [{
    client_id: "heddle", client_secret: "secret&with=signs%+", grant_types: ["authorization_code"], response_types: ["code"],
    redirect_uris: [`${client}/_ui/sign_in/callback`], post_logout_redirect_uris: [`${client}/`],
    token_endpoint_auth_method: "client_secret_basic",
  }],
  claims: { openid: ["sub"], profile: ["groups"], email: ["email", "email_verified"] },
  pkce: { required: () => true },
  features: { devInteractions: { enabled: true }, rpInitiatedLogout: { enabled: true } },
  findAccount: (_, id) => ({
    accountId: id,
    claims: () => ({ sub: id, email: `${id}@example.com`, email_verified: true, groups: GROUPS[id] ?? [] }),
  }),
});
createServer(provider.callback()).listen(Number(port), "127.0.0.1", () => console.log("ready"));
