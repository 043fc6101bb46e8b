// Scenarios of go-amqp against a broker: PORT SCENARIO [OPTIONS]. Each checks what a user of go-amqp would see, and
// ends with one line of JSON on stdout; whatever goes wrong is told on stderr, and the exit code is 1.
package main

import (
	"bytes"
	"context"
	"encoding/json"
	"errors"
	"fmt"
	"os"
	"sync"
	"time"

	"github.com/Azure/go-amqp"
)

const (
	timeout  = 30 * time.Second
	patience = 3 * time.Second // what the broker should answer at once
)

type user struct {
	port    string
	options map[string]any
	ctx     context.Context
	conn    *amqp.Conn
	session *amqp.Session
}

type scenario func(*user) any

func check(err error) {
	if err != nil {
		panic(err)
	}
}

func must[T any](value T, err error) T {
	check(err)
	return value
}

// connect opens a connection and a session of its own.
func (u *user) connect(options *amqp.ConnOptions) *user {
	other := &user{port: u.port, options: u.options, ctx: u.ctx}
	other.conn = must(amqp.Dial(u.ctx, "amqp://127.0.0.1:"+u.port, options))
	other.session = must(other.conn.NewSession(u.ctx, nil))
	return other
}

func (u *user) sender(address string, options *amqp.SenderOptions) *amqp.Sender {
	return must(u.session.NewSender(u.ctx, address, options))
}

func (u *user) receiver(address string, options *amqp.ReceiverOptions) *amqp.Receiver {
	return must(u.session.NewReceiver(u.ctx, address, options))
}

func (u *user) send(address string, texts ...string) {
	sender := u.sender(address, nil)
	for _, text := range texts {
		check(sender.Send(u.ctx, amqp.NewMessage([]byte(text)), nil))
	}
	check(sender.Close(u.ctx))
}

func (u *user) next(receiver *amqp.Receiver) *amqp.Message {
	return must(receiver.Receive(u.ctx, nil))
}

func texts(messages []*amqp.Message) []string {
	found := []string{}
	for _, message := range messages {
		found = append(found, string(message.GetData()))
	}
	return found
}

// left takes what a queue has now, over a connection of its own.
func (u *user) left(address string) []string {
	other := u.connect(nil)
	defer other.conn.Close()
	receiver := other.receiver(address, &amqp.ReceiverOptions{Credit: -1})
	check(receiver.IssueCredit(2000))
	sentinel := "the last of " + address
	other.send(address, sentinel) // whatever comes before it was there
	found := []string{}
	for {
		message := other.next(receiver)
		check(receiver.AcceptMessage(u.ctx, message))
		if string(message.GetData()) == sentinel {
			return found
		}
		found = append(found, string(message.GetData()))
	}
}

// condition is what the broker has told as the cause of an error; or else the error's text; empty without one.
func condition(err error) string {
	var told *amqp.Error
	if errors.As(err, &told) {
		return string(told.Condition)
	}
	if err != nil {
		return err.Error()
	}
	return ""
}

func numbers(count int) []string {
	found := []string{}
	for number := range count {
		found = append(found, fmt.Sprint(number))
	}
	return found
}

var scenarios = map[string]scenario{
	"outcomes": func(u *user) any {
		u.send("go.outcomes", "accepted", "released", "modified", "rejected")
		receiver := u.receiver("go.outcomes", &amqp.ReceiverOptions{Credit: 10})
		seen := []string{}
		for range 6 {
			message := u.next(receiver)
			text := string(message.GetData())
			count := uint32(0)
			if message.Header != nil {
				count = message.Header.DeliveryCount
			}
			again := len(seen) >= 4
			seen = append(seen, fmt.Sprintf("%s %d", text, count))
			switch {
			case text == "rejected":
				check(receiver.RejectMessage(u.ctx, message, &amqp.Error{Condition: "go:no"}))
			case text == "released" && !again:
				check(receiver.ReleaseMessage(u.ctx, message))
			case text == "modified" && !again:
				check(receiver.ModifyMessage(u.ctx, message, &amqp.ModifyMessageOptions{DeliveryFailed: true}))
			default:
				check(receiver.AcceptMessage(u.ctx, message))
			}
		}
		check(receiver.Close(u.ctx))
		return map[string]any{"seen": seen, "dead": u.left("go.outcomes.dead"), "left": u.left("go.outcomes")}
	},

	"settled": func(u *user) any {
		mode := amqp.SenderSettleModeSettled
		sender := u.sender("go.settled", &amqp.SenderOptions{SettlementMode: &mode})
		for _, text := range numbers(50) {
			check(sender.Send(u.ctx, amqp.NewMessage([]byte(text)), nil))
		}
		receiver := u.receiver("go.settled", &amqp.ReceiverOptions{Credit: 100, RequestedSenderSettleMode: &mode})
		found := []*amqp.Message{}
		for range 50 {
			found = append(found, u.next(receiver))
		}
		u.conn.Close() // nothing was accepted: nothing has to be
		return map[string]any{"found": texts(found), "left": u.left("go.settled")}
	},

	"second": func(u *user) any {
		mode, unsettled := amqp.ReceiverSettleModeSecond, amqp.SenderSettleModeUnsettled
		sender := u.sender("go.second", &amqp.SenderOptions{RequestedReceiverSettleMode: &mode, SettlementMode: &unsettled})
		for _, text := range numbers(20) {
			check(sender.Send(u.ctx, amqp.NewMessage([]byte(text)), nil))
		}
		receiver := u.receiver("go.second", &amqp.ReceiverOptions{Credit: 5, SettlementMode: &mode})
		found := []*amqp.Message{}
		for range 10 {
			message := u.next(receiver)
			check(receiver.AcceptMessage(u.ctx, message)) // returns when the broker has settled
			found = append(found, message)
		}
		check(receiver.Close(u.ctx))
		return map[string]any{"found": texts(found), "left": u.left("go.second")}
	},

	// What a receiver holds comes back with its link, its session, its connection.
	"closes": func(u *user) any {
		u.send("go.closes", numbers(10)...)
		result := map[string]any{}
		for _, what := range []string{"link", "session", "connection"} {
			holder := u.connect(nil)
			receiver := holder.receiver("go.closes", &amqp.ReceiverOptions{Credit: 10})
			held := []*amqp.Message{}
			for range 10 {
				held = append(held, holder.next(receiver))
			}
			check(receiver.AcceptMessage(u.ctx, held[0]))
			u.send("go.closes", string(held[0].GetData())) // takes its turn at the end
			switch what {
			case "link":
				check(receiver.Close(u.ctx))
				late := receiver.AcceptMessage(u.ctx, held[1])
				result["late"] = late != nil
			case "session":
				check(holder.session.Close(u.ctx))
			case "connection":
				check(holder.conn.Close())
			}
			other := u.connect(nil)
			again := other.receiver("go.closes", &amqp.ReceiverOptions{Credit: 10})
			first := other.next(again)
			result[what] = string(first.GetData())
			holder.conn.Close()
			other.conn.Close()
		}
		result["left"] = u.left("go.closes")
		return result
	},

	// A link's name is the container's: whoever attaches it elsewhere takes it away.
	"stolen": func(u *user) any {
		u.send("go.stolen", "one", "two")
		first := u.connect(&amqp.ConnOptions{ContainerID: "thief"})
		second := u.connect(&amqp.ConnOptions{ContainerID: "thief"})
		stranger := u.connect(&amqp.ConnOptions{ContainerID: "somebody else"})
		options := &amqp.ReceiverOptions{Name: "mine", Credit: 10}
		receiver := first.receiver("go.stolen", options)
		first.next(receiver)
		first.next(receiver)
		other := stranger.receiver("go.stolen.other", options) // the same name of another container is another link
		thief := second.receiver("go.stolen", options)
		short, cancel := context.WithTimeout(u.ctx, patience)
		defer cancel()
		_, err := receiver.Receive(short, nil)
		if condition(err) != string(amqp.ErrCondStolen) {
			return map[string]any{"condition": condition(err)}
		}
		found := []*amqp.Message{second.next(thief), second.next(thief)}
		u.send("go.stolen.other", "for somebody else")
		return map[string]any{"condition": condition(err), "found": texts(found), "other": string(stranger.next(other).GetData())}
	},

	// A name that was closed, or whose connection was, can be used again, also in the other direction.
	"names": func(u *user) any {
		result := []string{}
		for number := range 3 {
			other := u.connect(&amqp.ConnOptions{ContainerID: "again"})
			sender := other.sender("go.names", &amqp.SenderOptions{Name: "name"})
			check(sender.Send(u.ctx, amqp.NewMessage([]byte(fmt.Sprint(number))), nil))
			receiver := other.receiver("go.names", &amqp.ReceiverOptions{Name: "name"})
			message := other.next(receiver)
			check(receiver.AcceptMessage(u.ctx, message))
			result = append(result, string(message.GetData()))
			check(sender.Close(u.ctx))
			check(receiver.Close(u.ctx))
			sender = other.sender("go.names", &amqp.SenderOptions{Name: "name"})
			check(sender.Send(u.ctx, amqp.NewMessage([]byte("again")), nil))
			receiver = other.receiver("go.names", &amqp.ReceiverOptions{Name: "name"})
			check(receiver.AcceptMessage(u.ctx, other.next(receiver)))
			check(other.conn.Close())
		}
		return map[string]any{"found": result, "left": u.left("go.names")}
	},

	"selector": func(u *user) any {
		sender := u.sender("go.selected", nil)
		for number := range 300 {
			message := amqp.NewMessage([]byte(fmt.Sprint(number)))
			message.ApplicationProperties = map[string]any{"number": int64(number), "third": number%3 == 0}
			check(sender.Send(u.ctx, message, nil))
		}
		filter := amqp.NewSelectorFilter("third AND number >= 270")
		receiver := u.receiver("go.selected", &amqp.ReceiverOptions{Credit: 300, Filters: []amqp.LinkFilter{filter}})
		found := []*amqp.Message{}
		for range 10 {
			message := u.next(receiver)
			check(receiver.AcceptMessage(u.ctx, message))
			found = append(found, message)
		}
		check(receiver.Close(u.ctx))
		wrong := amqp.NewSelectorFilter("number >=")
		_, err := u.connect(nil).session.NewReceiver(u.ctx, "go.selected", &amqp.ReceiverOptions{Filters: []amqp.LinkFilter{wrong}})
		return map[string]any{
			"found":   texts(found),
			"inForce": receiver.LinkSourceFilterValue("apache.org:selector-filter:string"),
			"wrong":   condition(err),
			"left":    len(u.left("go.selected")),
		}
	},

	// A filter that nobody knows: refused, or left out of the answer.
	"filter": func(u *user) any {
		filter := amqp.NewLinkFilter("example:nothing", 0, "nothing")
		options := &amqp.ReceiverOptions{Filters: []amqp.LinkFilter{filter}}
		receiver, err := u.session.NewReceiver(u.ctx, "go.filtered", options)
		if err != nil {
			return condition(err)
		}
		return receiver.LinkSourceFilterValue("example:nothing")
	},

	"large": func(u *user) any {
		body := bytes.Repeat([]byte("0123456789abcdef!"), (40<<20)/17)
		check(u.sender("go.large", nil).Send(u.ctx, amqp.NewMessage(body), nil))
		receiver := u.receiver("go.large", nil)
		message := u.next(receiver)
		check(receiver.AcceptMessage(u.ctx, message))
		check(receiver.Close(u.ctx))
		return map[string]any{"same": bytes.Equal(body, message.GetData()), "left": u.left("go.large")}
	},

	// A message that the receiver does not take for its size is not sent to it, and stays.
	"limit": func(u *user) any {
		u.send("go.limit", string(bytes.Repeat([]byte("x"), 5000)))
		receiver := u.receiver("go.limit", &amqp.ReceiverOptions{MaxMessageSize: 1000, Credit: 1})
		short, cancel := context.WithTimeout(u.ctx, patience)
		defer cancel()
		message, err := receiver.Receive(short, nil)
		var link *amqp.LinkError
		told := errors.As(err, &link) && link.RemoteErr != nil
		receiver.Close(u.ctx)
		return map[string]any{
			"received": message != nil, "told": told, "condition": condition(err), "left": len(u.left("go.limit")),
		}
	},

	"excessive": func(u *user) any {
		sender := u.sender("go.excessive", nil)
		limit := sender.MaxMessageSize()
		err := sender.Send(u.ctx, amqp.NewMessage(make([]byte, limit+6<<20)), nil)
		u.send("go.excessive", "small")
		return map[string]any{"limit": limit, "refused": err != nil, "left": u.left("go.excessive")}
	},

	// A dynamic address of one connection, used from another one.
	"dynamic": func(u *user) any {
		receiver := u.receiver("", &amqp.ReceiverOptions{DynamicAddress: true, Credit: 10})
		other := u.connect(nil)
		sender := other.sender(receiver.Address(), nil)
		check(sender.Send(u.ctx, amqp.NewMessage([]byte("to a dynamic source")), nil))
		message := u.next(receiver)
		check(receiver.AcceptMessage(u.ctx, message))
		address := receiver.Address()
		check(receiver.Close(u.ctx))
		_, err := other.session.NewSender(u.ctx, address, nil)
		return []string{string(message.GetData()), condition(err)}
	},

	"dynamic target": func(u *user) any {
		sender := u.sender("", &amqp.SenderOptions{DynamicAddress: true})
		check(sender.Send(u.ctx, amqp.NewMessage([]byte("to a dynamic target")), nil))
		receiver := u.receiver(sender.Address(), nil)
		message := u.next(receiver)
		check(receiver.AcceptMessage(u.ctx, message))
		return string(message.GetData())
	},

	"anonymous": func(u *user) any {
		sender := u.sender("", nil)
		for _, address := range []string{"go.to.one", "go.to.two"} {
			message := amqp.NewMessage([]byte(address))
			message.Properties = &amqp.MessageProperties{To: &address}
			check(sender.Send(u.ctx, message, nil))
		}
		nowhere := sender.Send(u.ctx, amqp.NewMessage([]byte("to nobody")), nil)
		return map[string]any{"one": u.left("go.to.one"), "two": u.left("go.to.two"), "nowhere": nowhere != nil}
	},

	"credit": func(u *user) any {
		u.send("go.credit", numbers(10)...)
		receiver := u.receiver("go.credit", &amqp.ReceiverOptions{Credit: -1})
		check(receiver.IssueCredit(3))
		found := []*amqp.Message{u.next(receiver), u.next(receiver), u.next(receiver)}
		others := len(u.left("go.credit"))
		early := receiver.Prefetched()
		check(receiver.IssueCredit(5))
		u.send("go.credit", "later")
		found = append(found, u.next(receiver))
		return map[string]any{"found": texts(found), "others": others, "early": early != nil}
	},

	// DrainCredit returns with credit that is left, with credit that is used up, and without any.
	"drain": func(u *user) any {
		receiver := u.receiver("go.drained", &amqp.ReceiverOptions{Credit: -1})
		credit, there := uint32(u.options["credit"].(float64)), int(u.options["there"].(float64))
		u.send("go.drained", numbers(there)...)
		if credit > 0 {
			check(receiver.IssueCredit(credit))
		}
		found := []*amqp.Message{}
		for range there {
			message := u.next(receiver)
			check(receiver.AcceptMessage(u.ctx, message))
			found = append(found, message)
		}
		short, cancel := context.WithTimeout(u.ctx, patience)
		defer cancel()
		if err := receiver.DrainCredit(short, nil); err != nil {
			return condition(err)
		}
		u.send("go.drained", "after")
		check(receiver.IssueCredit(1))
		message := u.next(receiver)
		check(receiver.AcceptMessage(u.ctx, message))
		return []any{texts(found), string(message.GetData())}
	},

	// {"sender": address} or {"receiver": address}, {"capability": …}: what a user hears when a link is attached.
	"refusal": func(u *user) any {
		short, cancel := context.WithTimeout(u.ctx, patience)
		defer cancel()
		var err error
		capabilities := []string{}
		if capability, ok := u.options["capability"].(string); ok {
			capabilities = append(capabilities, capability)
		}
		if address, ok := u.options["sender"].(string); ok {
			_, err = u.session.NewSender(short, address, &amqp.SenderOptions{TargetCapabilities: capabilities})
		} else {
			address := u.options["receiver"].(string)
			_, err = u.session.NewReceiver(short, address, &amqp.ReceiverOptions{SourceCapabilities: capabilities})
		}
		u.send("allowed.after", "still useful")
		return []any{condition(err), u.left("allowed.after")}
	},

	// Sessions, and links of one session, from many goroutines.
	"many": func(u *user) any {
		pairs := int(u.options["pairs"].(float64))
		tasks := make(chan int)
		var group sync.WaitGroup
		failed := make(chan error, pairs)
		for range 50 {
			group.Add(1)
			go func() {
				defer group.Done()
				for number := range tasks {
					failed <- func() error {
						session, err := u.conn.NewSession(u.ctx, nil)
						if err != nil {
							return err
						}
						receiver, err := u.session.NewReceiver(u.ctx, "go.many.other", nil)
						if err != nil {
							return err
						}
						sender, err := session.NewSender(u.ctx, "go.many", nil)
						if err != nil {
							return err
						}
						if err := sender.Send(u.ctx, amqp.NewMessage([]byte(fmt.Sprint(number))), nil); err != nil {
							return err
						}
						if err := receiver.Close(u.ctx); err != nil {
							return err
						}
						return session.Close(u.ctx)
					}()
				}
			}()
		}
		for number := range pairs {
			tasks <- number
		}
		close(tasks)
		group.Wait()
		close(failed)
		for err := range failed {
			check(err)
		}
		return len(u.left("go.many"))
	},
}

func main() {
	ctx, cancel := context.WithTimeout(context.Background(), timeout)
	defer cancel()
	options := map[string]any{}
	if len(os.Args) > 3 {
		check(json.Unmarshal([]byte(os.Args[3]), &options))
	}
	u := (&user{port: os.Args[1], options: options, ctx: ctx}).connect(nil)
	result := must(json.Marshal(scenarios[os.Args[2]](u)))
	fmt.Println(string(result))
}
