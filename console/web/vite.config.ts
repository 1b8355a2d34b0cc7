import { createHash } from "node:crypto";
import { readdirSync, readFileSync } from "node:fs";
import { defineConfig } from "vite";

// of what the scripts were built; console/assets.py compares it with the sources
const sources = createHash("sha256");
for (const name of [...readdirSync("src").sort().map((one) => `src/${one}`), "package-lock.json", "vite.config.ts"])
  sources.update(`${name}\n`).update(readFileSync(name));

export default defineConfig({
  base: "/static/",
  publicDir: "public",
  plugins: [
    {
      name: "sources",
      generateBundle() {
        this.emitFile({ type: "asset", fileName: ".vite/sources", source: sources.copy().digest("hex") });
      },
    },
  ],
  build: {
    outDir: "../static",
    emptyOutDir: true,
    manifest: true,
    assetsInlineLimit: 0,
    rollupOptions: { input: "src/main.ts" },
    chunkSizeWarningLimit: 1200,
  },
});
