import { defineConfig } from "vite";

export default defineConfig({
  base: "/static/",
  publicDir: "public",
  build: {
    outDir: "../static",
    emptyOutDir: true,
    manifest: true,
    assetsInlineLimit: 0,
    rollupOptions: { input: "src/main.ts" },
    chunkSizeWarningLimit: 1200,
  },
});
