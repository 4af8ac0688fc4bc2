// lowdb of npm, for `headworks crashtest`: lowdb.mjs load|check DIR. `load` prints a line for each write that ended; `check` wants a whole
// version, and any if one was promised.
import fs from 'node:fs';
import { JSONFilePreset } from 'lowdb/node';

const [step, folder] = process.argv.slice(2);
const data = (number) => ({ number, text: `v${number}-`.repeat(500) });
const fail = (text) => {
  console.log(text);
  process.exit(1);
};

const db = await JSONFilePreset(folder + '/db.json', data(0)).catch((error) => fail('lowdb does not open: ' + error.message));
if (step === 'load') {
  for (let number = 1; number <= 8; number++) {
    db.data = data(number);
    await db.write();
    fs.writeSync(1, `ok ${number}\n`);
  }
} else if (db.data.text !== data(db.data.number).text) {
  fail('the file is torn');
} else if (db.data.number === 0 && fs.readFileSync(0, 'utf8').includes('ok')) {
  fail('nothing is there');
}
