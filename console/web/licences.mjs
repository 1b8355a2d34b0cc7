// Collects the licences of everything that a browser gets into one file, which the console serves.
import { readFileSync, readdirSync, writeFileSync } from "node:fs";

const lock = JSON.parse(readFileSync("package-lock.json", "utf8"));
const parts = [];
for (const [folder, one] of Object.entries(lock.packages)) {
  if (!folder || one.dev) continue;
  const file = readdirSync(folder).find((name) => /^(licen[cs]e|copying)/i.test(name));
  const name = folder.replace(/^.*node_modules\//, "");
  const text = file ? readFileSync(`${folder}/${file}`, "utf8").trim() : "The package has no file with its licence.";
  parts.push(`${name} ${one.version} (${one.license ?? "no licence stated"})\n\n${text}\n`);
}
writeFileSync("../static/licences.txt", parts.sort().join(`\n${"-".repeat(80)}\n\n`));
