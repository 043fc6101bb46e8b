// What users of rhea do with links: node links.js PORT SCENARIO [OPTIONS]. As client.js, but rhea is used as it is.
'use strict';

const assert = require('assert');
const rhea = require('rhea');
const {connected, drained, next, receiver, run, send, sender, take} = require('./scenario.js');

const MEGABYTE = 1 << 20;

const bodies = contexts => contexts.map(context => context.message.body);
const numbers = (count, start) => Array.from({length: count}, (_, index) => index + (start || 0));

// A body whose octets tell where they belong.
function octets(length) {
    return Buffer.alloc(length, Buffer.from(numbers(1009).map(number => number * 7)));
}

// Sends as fast as the credit allows, and waits until everything is accepted.
function pour(link, messages) {
    return new Promise((resolve, reject) => {
        let sent = 0, accepted = 0;
        const more = () => { while (sent < messages.length && link.sendable()) link.send(messages[sent++]); };
        link.on('accepted', () => { if (++accepted === messages.length) resolve(); });
        link.on('rejected', context => reject(new Error('rejected: ' + context.delivery.remote_state.error)));
        link.on('sender_error', context => reject(new Error('closed: ' + context.sender.error)));
        link.on('sendable', more);
        more();
        if (messages.length === 0) resolve();
    });
}

// What a queue has and nobody holds, in its order; it stays there.
async function browsed(connection, address) {
    const link = await receiver(connection, {source: {address: address, distribution_mode: 'copy'}});
    const found = bodies(await drained(link, 2000));
    link.close();
    await next(link, 'receiver_close');
    return found;
}

// Its answer to a request of its own.
async function managed(connection, operation) {
    const replies = await receiver(connection, {source: {dynamic: true}});
    const out = await sender(connection, '$management');
    await send(out, {reply_to: replies.source.address, application_properties: {operation: operation}});
    const [context] = await take(replies, 1);
    context.delivery.accept();
    return context.message.body;
}

// What is heard of a link before a link that is attached after it: an error, or that it can be used.
async function heard(connection, open) {
    const link = open(), told = {condition: null, sendable: false};
    for (const event of ['sender_error', 'receiver_error']) {
        link.on(event, () => { told.condition = link.error.condition; });
    }
    link.on('sendable', () => { told.sendable = true; });
    const probe = connection.open_sender('allowed.probe');
    await next(probe, 'sendable');
    probe.close();
    await next(probe, 'sender_close');
    const theirs = link.remote.attach[link.is_receiver() ? 'source' : 'target'];
    told.terminus = Boolean(theirs && theirs.address);
    return told;
}

const scenarios = {};

// {sender: …} or {receiver: …}: how it is refused, and which queues there are then.
scenarios.refusal = async (connection, options) => {
    const told = await heard(connection, () =>
        options.sender ? connection.open_sender(options.sender) : connection.open_receiver(options.receiver));
    told.queues = (await managed(connection, 'queues')).map(queue => queue.name).sort();
    return told;
};

// A filter that nobody knows: whether it is in the answer, or how it is refused.
scenarios.filter = async connection => {
    const filter = {'example:nothing': rhea.types.wrap_described('nothing', 'example:nothing:string')};
    const link = connection.open_receiver({source: {address: 'filtered', filter: filter}, credit_window: 0});
    let condition = null;
    link.on('receiver_error', () => { condition = link.error.condition; });
    await new Promise(resolve => { link.on('receiver_open', resolve); });
    await browsed(connection, 'filtered');
    const answered = link.source && link.source.filter ? Object.keys(link.source.filter) : [];
    return {condition: condition, filters: answered};
};

// What is answered to a source that should outlive its session.
scenarios.promises = async connection => {
    const wanted = {address: 'promised', durable: 2, expiry_policy: 'never', timeout: 60, capabilities: ['example:nothing']};
    const link = connection.open_receiver({source: wanted, credit_window: 0});
    let condition = null;
    link.on('receiver_error', () => { condition = link.error.condition; });
    await new Promise(resolve => { link.on('receiver_open', resolve); });
    await browsed(connection, 'promised');
    return {condition: condition};
};

scenarios.drain = async connection => {
    const out = await sender(connection, 'drained'), back = await receiver(connection, 'drained');
    const counts = [];
    for (const [there, credit] of [[0, 10], [3, 10], [7, 12], [0, 1]]) {
        await pour(await sender(connection, 'drained'), numbers(there).map(number => ({body: number})));
        const found = await drained(back, credit);
        found.forEach(context => context.delivery.accept());
        counts.push(found.length);
        assert.strictEqual(back.credit, 0);
    }
    const waiting = take(back, 2);  // without drain the credit stays, for what comes later
    await send(out, {body: 'later'});
    await send(out, {body: 'later still'});
    assert.deepStrictEqual(bodies(await waiting), ['later', 'later still']);
    return counts;
};

// As many messages as the drained credit: the state of the link is told all the same.
scenarios.exhausted = async connection => {
    await pour(await sender(connection, 'exhausted'), numbers(7).map(number => ({body: number})));
    const back = await receiver(connection, 'exhausted'), counts = [];
    for (const credit of [4, 3]) {
        const found = await drained(back, credit);
        found.forEach(context => context.delivery.accept());
        counts.push(found.length);
    }
    return counts;
};

scenarios.replies = async (connection, options) => {
    const responder = await connected(options), requests = await receiver(responder, 'requests');
    const replies = await receiver(connection, {source: {dynamic: true}});
    const out = await sender(connection, 'requests'), answers = [];
    for (const body of ['one', 'two']) {
        await send(out, {body: body, reply_to: replies.source.address, correlation_id: body});
        const [request] = await take(requests, 1);
        const back = await sender(responder, request.message.reply_to);
        await send(back, {body: 'to ' + request.message.body, correlation_id: request.message.correlation_id});
        request.delivery.accept();
        const [answer] = await take(replies, 1);
        answer.delivery.accept();
        answers.push([answer.message.correlation_id, answer.message.body]);
        back.close();
        await next(back, 'sender_close');
    }
    const address = replies.source.address;
    replies.close();
    await next(replies, 'receiver_close');
    const late = await heard(responder, () => responder.open_sender(address));
    responder.close();
    return {answers: answers, late: late.condition};
};

scenarios.anonymous = async connection => {
    const offered = [].concat(connection.remote.open.offered_capabilities || []).map(String);
    const out = connection.open_sender({target: {}});
    await next(out, 'sendable');
    for (const address of ['anonymous.one', 'anonymous.two', 'anonymous.one']) {
        const delivery = await send(out, {to: address, body: 'to ' + address});
        assert.strictEqual(delivery.remote_state.constructor.composite_type, 'accepted');
    }
    return {
        offered: offered.includes('ANONYMOUS-RELAY'),
        one: await browsed(connection, 'anonymous.one'),
        two: await browsed(connection, 'anonymous.two'),
    };
};

// Messages that go nowhere: without `to`, to an address of the broker's own, to one that is not allowed.
scenarios.astray = async connection => {
    const conditions = [];
    for (const message of [{body: 1}, {to: '$nothing', body: 2}, {to: 'forbidden', body: 3}]) {
        const out = connection.open_sender({target: {}});
        await next(out, 'sendable');
        conditions.push(await new Promise(resolve => {
            out.on('rejected', context => resolve(context.delivery.remote_state.error.condition));
            out.on('accepted', () => resolve('accepted'));
            out.on('sender_error', context => resolve(context.sender.error.condition));
            out.send(message);
        }));
    }
    const out = connection.open_sender({target: {}});
    await next(out, 'sendable');
    await send(out, {to: 'allowed.astray', body: 4});
    return {conditions: conditions, arrived: await browsed(connection, 'allowed.astray')};
};

// Opened, and closed when they are open; `together` of them are under way at a time.
async function pairs(count, together, open) {
    let begun = 0, ended = 0;
    const one = async () => {
        while (begun < count) {
            begun++;
            await open();
            await new Promise(resolve => setImmediate(resolve));  // rhea gives the number back a turn later
            ended++;
        }
    };
    await Promise.all(numbers(together).map(one));
    return ended;
}

scenarios.sessions = async (connection, options) => {
    const ended = await pairs(options.pairs, 32, async () => {
        const session = connection.create_session();
        session.begin();
        await next(session, 'session_open');
        session.end();
        await next(session, 'session_close');
    });
    const out = await sender(connection, 'after-sessions');
    await send(out, {body: 'still useful'});
    return [ended, await browsed(connection, 'after-sessions')];
};

scenarios.links = async (connection, options) => {
    let number = 0;
    const ended = await pairs(options.pairs, 100, async () => {
        const sends = number++ % 2, kind = sends ? 'sender' : 'receiver';
        const link = sends ? connection.open_sender('pairs') : connection.open_receiver({source: 'pairs', credit_window: 0});
        await next(link, kind + '_open');
        link.close();
        await next(link, kind + '_close');
    });
    const out = await sender(connection, 'after-links');
    await send(out, {body: 'still useful'});
    return [ended, await browsed(connection, 'after-links')];
};

// 60 sessions and 1,100 links at once: all are attached before one is answered, and each is used.
scenarios.crowd = async connection => {
    const sessions = numbers(60).map(() => {
        const session = connection.create_session();
        session.begin();
        return session;
    });
    const links = numbers(1100).map(number => sessions[number % 60].open_sender('crowd-' + number % 3));
    await Promise.all(links.map(link => next(link, 'sendable')));
    await Promise.all(links.map((link, number) => pour(link, [{body: number}])));
    const found = [];
    for (const name of ['crowd-0', 'crowd-1', 'crowd-2']) found.push(...await browsed(connection, name));
    assert.deepStrictEqual(found.sort((one, other) => one - other), numbers(1100));
    return found.length;
};

// One link more than a session may have: it is refused, and the others go on.
scenarios.full = async (connection, options) => {
    const session = connection.create_session();
    session.begin();
    const links = numbers(options.links).map(() => session.open_sender('full'));
    await Promise.all(links.map(link => next(link, 'sendable')));
    const {condition} = await heard(connection, () => session.open_sender('full'));
    await send(links[0], {body: 'the first'});
    await send(links[options.links - 1], {body: 'the last'});
    return [condition, await browsed(connection, 'full')];
};

scenarios.credit = async connection => {
    const count = 1000;
    await pour(await sender(connection, 'windows'), numbers(count).map(number => ({body: number})));
    const slow = await receiver(connection, 'windows');
    const first = await take(slow, 3);
    const others = await browsed(connection, 'windows');
    assert.strictEqual(others.length, count - 3, 'the credit was 3');
    assert.strictEqual(slow.arrived.length, 0);
    const fast = await receiver(connection, {source: 'windows', credit_window: 10, autoaccept: true});
    while (fast.arrived.length < count - 3) await next(fast, 'one_more');
    first.forEach(context => context.delivery.release());
    while (fast.arrived.length < count) await next(fast, 'one_more');
    assert.deepStrictEqual(bodies(fast.arrived), [...numbers(count - 3, 3), 0, 1, 2]);
    return await browsed(connection, 'windows');
};

scenarios.second = async connection => {
    const out = connection.open_sender({target: 'second', rcv_settle_mode: 1, autosettle: false});
    await next(out, 'sendable');
    const delivery = out.send({body: 'in three steps'});
    await next(out, 'accepted');
    const settledFirst = delivery.remote_settled;
    delivery.update(true);
    const back = await receiver(connection, {source: 'second', rcv_settle_mode: 1});
    const [released] = await take(back, 1);
    released.delivery.release();
    await next(back, 'settled');
    const [accepted] = await take(back, 1);
    accepted.delivery.accept();
    await next(back, 'settled');
    return {
        modes: [out.rcv_settle_mode, back.rcv_settle_mode],
        settledFirst: settledFirst,
        twice: [released.message.body, accepted.message.body],
        left: await browsed(connection, 'second'),
    };
};

scenarios.settled = async (connection, options) => {
    const out = await sender(connection, {target: 'settled', snd_settle_mode: 1});
    for (const number of numbers(10)) out.send({body: number});
    const other = await connected(options);
    const back = await receiver(other, {source: 'settled', snd_settle_mode: 1});
    const found = await take(back, 10);
    const settled = found.every(context => context.delivery.remote_settled);
    other.close();
    await next(other, 'connection_close');
    return {modes: [out.snd_settle_mode, back.snd_settle_mode], bodies: bodies(found), settled: settled,
        left: await browsed(connection, 'settled')};
};

// Detached and attached again under the name; what was held comes again, in its place.
scenarios.reattach = async connection => {
    const closed = [];
    const out = await sender(connection, {name: 'sends', target: 'reattached'});
    await send(out, {body: 1});
    out.detach();
    await next(out, 'sender_close');
    closed.push(out.remote.detach.closed);
    const again = await sender(connection, {name: 'sends', target: 'reattached'});
    for (const body of [2, 3]) await send(again, {body: body});
    const back = await receiver(connection, {name: 'receives', source: 'reattached'});
    const [accepted, held] = await take(back, 2);
    accepted.delivery.accept();
    await new Promise(resolve => setImmediate(resolve));  // rhea writes a detach before the dispositions of its turn
    back.detach();
    await next(back, 'receiver_close');
    closed.push(back.remote.detach.closed);
    assert.strictEqual(held.message.body, 2);
    const rest = await receiver(connection, {name: 'receives', source: 'reattached'});
    const found = await take(rest, 2);
    found.forEach(context => context.delivery.accept());
    return {closed: closed.map(Boolean), bodies: bodies(found), left: await drained(rest, 10)};
};

scenarios.selector = async connection => {
    const colours = ['green', 'red', 'blue'];
    await pour(await sender(connection, 'selected'), numbers(1000).map(number => (
        {body: number, subject: number % 2 ? 'odd' : 'even', application_properties: {colour: colours[number % 3], number: number}})));
    const selecting = text => receiver(connection, {source: {address: 'selected', filter: rhea.filter.selector(text)}});
    const back = await selecting("colour = 'green' AND number >= 500");
    assert.ok(back.source.filter, 'the filter is not in the answer: it is not in force');
    const found = await drained(back, 1001);
    found.forEach(context => context.delivery.accept());
    assert.deepStrictEqual(bodies(found), numbers(1000).filter(number => number % 3 === 0 && number >= 500));
    const one = await take(await selecting('number = 999 OR number = 7'), 1);
    assert.deepStrictEqual(bodies(one), [7]);
    one[0].delivery.release();
    const none = await selecting("colour IS NULL OR colour LIKE 'y%'");
    assert.deepStrictEqual(await drained(none, 1000), []);
    const waiting = take(none, 1);
    await send(await sender(connection, 'selected'), {body: 'late', application_properties: {colour: 'yellow'}});
    const [late] = await waiting;
    late.delivery.accept();
    assert.strictEqual(late.message.body, 'late');
    const wrong = await heard(connection, () =>
        connection.open_receiver({source: {address: 'selected', filter: rhea.filter.selector('number = ')}}));
    return {green: found.length, left: (await browsed(connection, 'selected')).length, wrong: wrong.condition};
};

scenarios.large = async connection => {
    const body = octets(40 * MEGABYTE);
    const out = await sender(connection, 'large');
    await send(out, {message_id: 'large', body: body});
    const back = await receiver(connection, 'large');
    const [context] = await take(back, 1);
    assert.strictEqual(context.message.message_id, 'large');
    assert.ok(body.equals(context.message.body), 'its octets are not those that were sent');
    context.delivery.accept();
    return context.message.body.length;
};

// A message above the limit: the link says so, and the connection goes on.
scenarios.excessive = async connection => {
    const out = await sender(connection, 'excessive'), limit = Number(out.max_message_size);
    out.send({body: octets(limit + 6 * MEGABYTE)});
    const context = await next(out, 'sender_error');
    const other = await sender(connection, 'excessive');
    await send(other, {body: 'small'});
    return [limit, context.sender.error.condition, await browsed(connection, 'excessive')];
};

// With {max_frame_size: 512} in the options of the connection.
scenarios.frames = async connection => {
    // no message has more frames than rhea's window: rhea tells of a larger one between messages only
    const sizes = [1, 400, 512, 513, ...numbers(8).map(number => 300000 + number)];
    const out = await sender(connection, 'frames'), back = await receiver(connection, 'frames');
    for (const size of sizes) {
        await send(out, {body: octets(size)});
        const [context] = await take(back, 1);
        assert.ok(octets(size).equals(context.message.body), 'of ' + size + ' octets');
        context.delivery.accept();
    }
    return sizes.length;
};

run(scenarios);
