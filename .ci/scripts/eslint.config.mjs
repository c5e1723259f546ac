import js from "@eslint/js";
import globals from "globals";

export default [
  js.configs.recommended,
  { ignores: ["**/heads.js"] },
  {
    languageOptions: { ecmaVersion: 2023, sourceType: "module", globals: globals.browser },
    rules: { "no-unused-vars": "error", "prefer-const": "error", eqeqeq: ["error", "always", { null: "ignore" }] },
  },
];
