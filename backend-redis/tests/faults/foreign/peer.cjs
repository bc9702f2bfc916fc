// node-redlock's own lock on ioredis, told what to do by lines on stdin; each has one answer.
const fs = require("node:fs");
const readline = require("node:readline");
const { setTimeout: sleep } = require("node:timers/promises");
const Redis = require("ioredis");
const { default: Redlock } = require("redlock");

const client = new Redis(process.argv[2]);
const redlock = new Redlock([client], { retryCount: 0 });
// Each refusal is reported here as well; without a listener it would end the process.
redlock.on("error", () => {});
const patient = (retryDelay) => ({ retryCount: -1, retryDelay, retryJitter: 2 });
let held;

const commands = {
  async try(key, ttl) {
    try {
      held = await redlock.acquire([key], Number(ttl));
      return "held";
    } catch {
      return "busy";
    }
  },

  async acquire(key, ttl) {
    held = await redlock.acquire([key], Number(ttl), patient(100));
    return "held";
  },

  async release() {
    try {
      await held.release();
      return "released";
    } catch {
      return "not owned";
    }
  },

  // A lost update shows two of us in here.
  async count(key, file, times) {
    for (let i = 0; i < Number(times); i++) {
      const lock = await redlock.acquire([key], 30000, patient(5));
      const number = Number(fs.readFileSync(file, "utf8"));
      await sleep(1);
      fs.writeFileSync(file, String(number + 1));
      await lock.release();
    }
    return "counted";
  },
};

async function main() {
  await client.ping();
  console.log("ready");
  for await (const line of readline.createInterface({ input: process.stdin })) {
    const [name, ...words] = line.split(" ");
    console.log(await commands[name](...words));
  }
  process.exit(0);
}

main();
