// Drives the proxy with the unmodified TypeScript SDK, as mcp_clients.py does with the others: a JSON command per line, an answer per line.
import { createInterface } from "node:readline";
import { setTimeout as pause } from "node:timers/promises";
import { Client } from "@modelcontextprotocol/sdk/client/index.js";
import { StreamableHTTPClientTransport } from "@modelcontextprotocol/sdk/client/streamableHttp.js";
import { ResourceUpdatedNotificationSchema } from "@modelcontextprotocol/sdk/types.js";

// The notifications of two resources while the calls are made.
async function watch(client, command) {
  const changes = [];
  client.setNotificationHandler(ResourceUpdatedNotificationSchema, ({ method, params }) => {
    changes.push(`${method} ${params.uri}`);
  });
  for (const uri of ["payments://policy", "payments://charge/1"]) await client.subscribeResource({ uri });
  for (const [name, args] of command.calls) await client.callTool({ name, arguments: args });
  for (let waited = 0; changes.length < command.wanted && waited < 100_000; waited += 20) await pause(20);
  return { changes };
}

async function answer(command) {
  const client = new Client({ name: "test", version: "1" });
  const requestInit = { headers: { Authorization: `Bearer ${command.key}` } };
  await client.connect(new StreamableHTTPClientTransport(new URL(command.url), { requestInit }));
  try {
    if (command.do === "watch") return await watch(client, command);
    const { tools } = await client.listTools();
    if (command.do === "list") return { tools: Object.fromEntries(tools.map((tool) => [tool.name, tool.inputSchema])) };
    const result = await client.callTool({ name: command.tool, arguments: command.args });
    const text = result.content.map((one) => one.text).join(" ");
    return { error: result.isError ?? false, text, data: result.structuredContent ?? null };
  } finally {
    await client.close();
  }
}

for await (const line of createInterface({ input: process.stdin })) {
  const command = JSON.parse(line);
  const found = await answer(command).catch((error) => ({ raised: String(error) }));
  process.stdout.write(JSON.stringify(found) + "\n");
}
