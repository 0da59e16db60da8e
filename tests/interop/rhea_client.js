// Sends COUNT events to LOG at PORT and waits until each is accepted; then receives all of them, those from the
// offset of the event number FROM, and those from its timestamp. Prints what it got as one line of JSON.
'use strict';

const rhea = require('rhea');
const types = rhea.types;

const [port, log, count, from] = [process.argv[2], process.argv[3], ...process.argv.slice(4).map(Number)];
const DESCRIPTOR = 'amqp:event-streams-delivery-annotations-filter';
const result = { accepted: 0, capabilities: null, partition: null, info: null, filterEchoed: null };

function startingAt(annotations) {
  const wanted = types.wrap_symbolic_map(annotations);
  return { start: types.described(types.wrap_symbol(DESCRIPTOR), wanted) };
}

function eventOf(message) {
  const annotations = message.delivery_annotations;
  return {
    body: message.body.content ? message.body.content.toString() : message.body,
    subject: message.subject,
    offset: annotations['event-streams-offset'],
    timestamp: annotations['event-streams-timestamp'].getTime(),
    partition: annotations['event-streams-partition'],
  };
}

function receive(connection, filter, enough) {
  return new Promise((resolve, reject) => {
    const events = [];
    const receiver = connection.open_receiver({ source: { address: log, filter }, credit_window: 50 });
    receiver.on('receiver_open', () => {
      result.filterEchoed = Object.keys(receiver.source.filter || {});
      result.partition = receiver.remote.attach.properties['event-streams-partition'];
    });
    receiver.on('receiver_error', () => reject(receiver.error));
    receiver.on('message', (context) => {
      events.push(eventOf(context.message));
      if (enough(events)) {
        receiver.close();
        resolve(events);
      }
    });
  });
}

function send(connection) {
  return new Promise((resolve, reject) => {
    const sender = connection.open_sender(log);
    let sent = 0;
    sender.on('sendable', () => {
      while (sent < count && sender.sendable()) {
        const body = sent % 2 ? `text ${sent}` : rhea.message.data_section(Buffer.from(`data ${sent}`));
        sender.send({ subject: 'PUT', to: `/products/${sent}`, body });
        sent += 1;
      }
    });
    sender.on('accepted', () => {
      result.accepted += 1;
      if (result.accepted === count) {
        sender.close();
        resolve();
      }
    });
    sender.on('rejected', (context) => reject(context.delivery.remote_state.error));
  });
}

function information(connection) {
  return new Promise((resolve) => {
    const receiver = connection.open_receiver(`${log}/$info`);
    receiver.on('message', (context) => resolve(context.message.body));
  });
}

async function main(connection) {
  result.capabilities = connection.remote.open.offered_capabilities;
  await send(connection);
  const last = (events) => events.length > 0 && events[events.length - 1].body.endsWith(` ${count - 1}`);
  const offset = (value) => startingAt({ 'event-streams-offset': types.wrap_symbol(value) });
  result.all = await receive(connection, offset('@earliest'), last);
  result.fromOffset = await receive(connection, offset(result.all[from].offset), last);
  const time = types.wrap_timestamp(result.all[from].timestamp);
  result.fromTimestamp = await receive(connection, startingAt({ 'event-streams-timestamp': time }), last);
  result.info = await information(connection);
  connection.close();
}

rhea.connect({ host: '127.0.0.1', port, reconnect: false }).once('connection_open', (context) => {
  main(context.connection).then(
    () => console.log(JSON.stringify(result)),
    (error) => {
      console.error(error);
      process.exit(1);
    },
  );
});
