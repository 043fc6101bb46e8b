// Scenarios of rhea against a broker: node client.js PORT SCENARIO. Each checks what a user of rhea would see,
// and ends with one line of JSON on stdout; whatever goes wrong is told on stderr, and the exit code is 1.
//
// rhea knows coordinators and delivery states only as described values, and sends no state with a transfer: the
// frame's field is filled in here.
'use strict';

const assert = require('assert');
const rhea = require('rhea');
const frames = require('rhea/lib/frames.js');
const {drained, next, receiver, run, send, sender, take, texts} = require('./scenario.js');
const types = rhea.types;

const COORDINATOR = 0x30, DECLARE = 0x31, DISCHARGE = 0x32, DECLARED = 0x33, TRANSACTIONAL = 0x34, ACCEPTED = 0x24;

let stateOfTransfers = null;
types.wrap_delivery_state = state => state;
const transfer = frames.transfer;
frames.transfer = function (fields) {
    return transfer(stateOfTransfers === null ? fields : Object.assign({state: stateOfTransfers}, fields));
};

const list = (descriptor, ...items) =>
    types.described(typeof descriptor === 'string' ? types.wrap_symbol(descriptor) : types.wrap_ulong(descriptor),
        types.wrap_list(items));
const posting = txn => list(TRANSACTIONAL, types.wrap_binary(txn));
const retiring = (txn, outcome) => list(TRANSACTIONAL, types.wrap_binary(txn), outcome || list(ACCEPTED));

// A message whose body is a described value: rhea writes no descriptor within the one of the section.
function command(link, value, properties) {
    const writer = new types.Writer();
    writer.write(value);
    const head = rhea.message.encode(properties || {}).subarray(0, -1);  // ends in the constructor of a null body
    return link.send(Buffer.concat([head, writer.toBuffer()]), undefined, 0);
}

// rhea writes the transfers of one turn of its loop before the dispositions.
const written = () => new Promise(resolve => setImmediate(resolve));

// A control link, and what is asked on it.
async function coordinator(connection, capabilities) {
    const link = connection.open_sender({name: 'control'});
    link.local.attach.target = list(COORDINATOR, types.wrap_array(capabilities, 0xa3));
    link.local.attach.source = list(0x28);
    await next(link, 'sendable');
    const control = {link: link};
    control.ask = async value => {
        const delivery = command(link, value);
        await next(link, 'settled');
        return delivery.remote_state;
    };
    control.declare = async globalId => {
        const state = await control.ask(list(DECLARE, ...(globalId ? [globalId] : [])));
        assert.strictEqual(state.descriptor.value, DECLARED);
        return Buffer.from(state.value[0].value || state.value[0]);
    };
    control.discharge = async (txn, fail) => control.ask(list(DISCHARGE, types.wrap_binary(txn), !!fail));
    return control;
}

const scenarios = {};

scenarios.bodies = async connection => {
    const out = await sender(connection, 'bodies');
    const bodies = ['text', Buffer.from([0, 255, 1]), {a: 1, b: ['x', null]}, 'x'.repeat(300000), 17, true];
    for (const [number, body] of bodies.entries()) {
        await send(out, {message_id: 'm' + number, body: body, application_properties: {number: number}});
    }
    const back = await receiver(connection, 'bodies');
    const found = await take(back, bodies.length);
    found.forEach((context, number) => {
        assert.strictEqual(context.message.message_id, 'm' + number);
        assert.strictEqual(context.message.application_properties.number, number);
        assert.deepStrictEqual(context.message.body, bodies[number]);
        context.delivery.accept();
    });
    assert.deepStrictEqual(await drained(back, 10), []);
    return bodies.length;
};

scenarios.order = async connection => {
    const out = await sender(connection, 'order'), count = 1000;
    let accepted = 0, sent = 0;
    const all = new Promise(resolve => out.on('accepted', () => { if (++accepted === count) resolve(); }));
    const pour = () => { while (sent < count && out.sendable()) out.send({body: sent++}); };
    out.on('sendable', pour);
    pour();
    await all;
    const back = await receiver(connection, {source: 'order', credit_window: 100, autoaccept: true});
    while (back.arrived.length < count) await next(back, 'one_more');
    back.arrived.forEach((context, number) => assert.strictEqual(context.message.body, number));
    return count;
};

scenarios.outcomes = async connection => {
    const out = await sender(connection, 'outcomes');
    for (const body of ['released', 'modified', 'rejected']) await send(out, {body: body});
    const back = await receiver(connection, 'outcomes');
    const [released, modified, rejected] = await take(back, 3);
    rejected.delivery.reject({condition: 'amqp:decode-error', description: 'no'});
    for (const [context, count, update] of [
        [released, 0, () => released.delivery.release()],
        [modified, 1, () => modified.delivery.modified({delivery_failed: true})],
    ]) {  // one by one: rhea sends outcomes of one moment as one disposition, and takes these two for the same
        update();
        const [again] = await take(back, 1);
        assert.strictEqual(again.message.body, context.message.body);
        assert.strictEqual(again.message.delivery_count || 0, count);
        again.delivery.accept();
    }
    assert.deepStrictEqual(await texts(connection, 'outcomes.dead'), ['rejected']);
    return await texts(connection, 'outcomes');
};

scenarios.browse = async connection => {
    const out = await sender(connection, 'browsed');
    for (const body of ['one', 'two']) await send(out, {body: body});
    const browser = await receiver(connection, {source: {address: 'browsed', distribution_mode: 'copy'}});
    const found = await take(browser, 2);
    assert.deepStrictEqual(found.map(context => context.message.body), ['one', 'two']);
    return await texts(connection, 'browsed');
};

scenarios.commit = async connection => {
    const control = await coordinator(connection, ['amqp:local-transactions']);
    const txn = await control.declare(), out = await sender(connection, 'committed');
    stateOfTransfers = posting(txn);
    const delivery = await send(out, {body: 'in the transaction'});
    stateOfTransfers = null;
    assert.strictEqual(delivery.remote_state.descriptor.value, TRANSACTIONAL);
    assert.deepStrictEqual(await texts(connection, 'committed'), []);
    const outcome = await control.discharge(txn);
    assert.strictEqual(outcome.constructor.composite_type, 'accepted');
    return await texts(connection, 'committed');
};

scenarios.rollback = async connection => {
    const control = await coordinator(connection, ['amqp:local-transactions']);
    const txn = await control.declare(), out = await sender(connection, 'rolled-back');
    await send(out, {body: 'stays'});
    stateOfTransfers = posting(txn);
    await send(out, {body: 'goes'});
    stateOfTransfers = null;
    const back = await receiver(connection, 'rolled-back');
    const [taken] = await take(back, 1);
    taken.delivery.update(false, retiring(txn));
    await written();
    await control.discharge(txn, true);
    assert.deepStrictEqual(await drained(back, 5), [], 'the delivery is live here still');
    const second = await control.declare();
    taken.delivery.update(true, retiring(second));
    await written();
    await control.discharge(second);
    return await texts(connection, 'rolled-back');
};

scenarios.refusals = async connection => {
    const control = await coordinator(connection, ['amqp:local-transactions']);
    const outcome = await control.discharge(Buffer.from('nobody'));
    assert.strictEqual(outcome.constructor.composite_type, 'rejected');
    const link = connection.open_receiver('$nothing/of/this/name');
    const context = await next(link, 'receiver_error');
    return [outcome.error.condition, context.receiver.error.condition];
};

// A branch of a global transaction: nothing but described lists, on a control link and a command channel.
scenarios.branch = async connection => {
    const xid = list('xabridge:xid:list', types.wrap_uint(7), types.wrap_binary(Buffer.from('rhea-1')),
        types.wrap_binary(Buffer.from('broker')));
    const control = await coordinator(connection, ['amqp:local-transactions', 'amqp:distributed-transactions']);
    const out = await sender(connection, 'branched'), commands = await sender(connection, '$dtx');
    const replies = await receiver(connection, {source: {dynamic: true}});
    const told = async value => {
        command(commands, value, {reply_to: replies.source.address, correlation_id: 'c'});
        const [context] = await take(replies, 1);
        context.delivery.accept();
        assert.strictEqual(context.message.correlation_id, 'c');
        return context.message.body;
    };
    await send(out, {body: 'old'});
    const txn = await control.declare(xid), back = await receiver(connection, 'branched');
    const [taken] = await take(back, 1);
    taken.delivery.update(true, retiring(txn));
    stateOfTransfers = posting(txn);
    await send(out, {body: 'new'});
    stateOfTransfers = null;
    await control.discharge(txn);
    const voted = await told(list('xabridge:prepare:list', xid));
    const found = await told(list('xabridge:recover:list'));
    assert.deepStrictEqual(await texts(connection, 'branched'), [], 'one message is locked, the other not there yet');
    const committed = await told(list('xabridge:commit:list', xid));
    assert.deepStrictEqual([voted, committed], [[0], [0]]);
    assert.strictEqual(found[0].length, 1);
    return await texts(connection, 'branched');
};

scenarios.identity = async connection => {
    const out = await sender(connection, 'orders');
    await send(out, {body: 'allowed'});
    const link = connection.open_sender('invoices');
    const context = await next(link, 'sender_error');
    return context.sender.error.condition;
};

run(scenarios);
