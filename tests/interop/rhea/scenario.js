// What scenarios of rhea are written with: links of which one can wait for what comes, and the program that runs one.
'use strict';

const rhea = require('rhea');

const TIMEOUT_MS = 30000;

// The next event of this name at an emitter; a rejection at a link that closes with an error.
function next(emitter, name) {
    return new Promise((resolve, reject) => {
        emitter.once(name, resolve);
        for (const failure of ['receiver_error', 'sender_error', 'connection_error', 'disconnected']) {
            if (failure !== name) emitter.once(failure, context => {
                const error = (context[failure.split('_')[0]] || {}).error || context.error || {};
                reject(new Error(failure + ' while waiting for ' + name + ': ' + error.condition + ' ' + error.description));
            });
        }
    });
}

async function connected(options) {
    const container = rhea.create_container();
    const connection = container.connect(Object.assign({host: '127.0.0.1', reconnect: false}, options));
    await next(connection, 'connection_open');
    return connection;
}

async function sender(connection, address) {
    const link = connection.open_sender(address);
    await next(link, 'sendable');
    return link;
}

async function receiver(connection, source) {
    const link = connection.open_receiver(
        Object.assign({credit_window: 0, autoaccept: false}, typeof source === 'string' ? {source: source} : source));
    await next(link, 'receiver_open');
    link.arrived = [];
    link.on('message', context => {
        link.arrived.push(context);
        link.emit('one_more');
    });
    return link;
}

async function take(link, count) {
    link.add_credit(count);
    while (link.arrived.length < count) await next(link, 'one_more');
    return link.arrived.splice(0, count);
}

// What is there now and no more: credit, and the drain that gives back what was not used.
async function drained(link, credit) {
    link.drain = true;
    link.add_credit(credit);
    await next(link, 'receiver_drained');
    link.drain = false;
    return link.arrived.splice(0);
}

async function send(link, message) {
    const delivery = link.send(message);
    const settled = next(link, 'settled');
    await settled;
    return delivery;
}

async function texts(connection, address) {
    const link = await receiver(connection, address);
    const found = await drained(link, 100);
    found.forEach(context => context.delivery.release());
    link.close();
    await next(link, 'receiver_close');
    return found.map(context => context.message.body);
}

async function main(scenarios) {
    const [port, scenario, extra] = process.argv.slice(2);
    const options = Object.assign({port: Number(port)}, extra ? JSON.parse(extra) : {});
    if (options.ca) options.ca = [require('fs').readFileSync(options.ca)];
    const connection = await connected(options);
    const result = await scenarios[scenario](connection, options);
    connection.close();
    await next(connection, 'connection_close');
    console.log(JSON.stringify(result));
}

// Runs the scenario that the command line names.
function run(scenarios) {
    const timer = setTimeout(() => { console.error('timeout'); process.exit(1); }, TIMEOUT_MS);
    main(scenarios).then(() => clearTimeout(timer), error => { console.error(error); process.exit(1); });
}

module.exports = {connected, drained, next, receiver, run, send, sender, take, texts};
