// etcd with one member inside this program, for `headworks crashtest`: PROGRAM load|check DIR. `load` prints a line for each put that was
// answered. `check` starts the member, reads all keys and puts one more; its last line says why that fails.
package main

import (
	"bufio"
	"context"
	"errors"
	"fmt"
	"os"
	"os/exec"
	"strings"
	"time"

	client "go.etcd.io/etcd/client/v3"
	"go.etcd.io/etcd/server/v3/embed"
	"go.etcd.io/etcd/server/v3/etcdserver/api/v3client"
	"go.uber.org/zap"
	"go.uber.org/zap/zapcore"
)

const count = 12

func value(n int) string { return strings.Repeat(fmt.Sprintf("v%d-", n), 1000) }

func key(n int) string { return fmt.Sprintf("key %02d", n) }

// start returns when the member answers requests. Its client calls it without a socket, so that checks run side by side.
func start(dir string) (*embed.Etcd, *client.Client, error) {
	config := embed.NewConfig()
	config.Dir = dir + "/data.etcd"
	config.TickMs, config.ElectionMs = 10, 100
	config.ListenPeerUrls, config.ListenClientUrls = nil, nil
	words := zapcore.NewConsoleEncoder(zapcore.EncoderConfig{MessageKey: "message"})
	log := zapcore.NewCore(words, zapcore.Lock(os.Stdout), zapcore.PanicLevel)
	config.ZapLoggerBuilder = embed.NewZapLoggerBuilder(zap.New(log))
	server, err := embed.StartEtcd(config)
	if err != nil {
		return nil, nil, err
	}
	select {
	case <-server.Server.ReadyNotify():
		return server, v3client.New(server.Server), nil
	case err := <-server.Err():
		return nil, nil, err
	case <-time.After(5 * time.Second):
		return nil, nil, errors.New("no leader after five seconds")
	}
}

func fail(format string, words ...any) {
	fmt.Printf(format+"\n", words...)
	os.Exit(1)
}

func main() {
	step, dir := os.Args[1], os.Args[2]
	if step == "check" {
		// A child, because no recover catches what etcd's own goroutines panic with, or a SIGBUS. The first line is the reason; behind its
		// words are a path or an address.
		member := exec.Command("/proc/self/exe", "member", dir)
		member.Stdin = os.Stdin
		if said, err := member.CombinedOutput(); err != nil {
			reason, _, _ := strings.Cut(string(said), "\n")
			reason, _, _ = strings.Cut(reason, "\t")
			reason, _, _ = strings.Cut(reason, " 0x")
			fail("%s", reason)
		}
		return
	}
	promised := 0
	if step == "member" {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Sscanf(lines.Text(), "ok %d", &promised)
		}
	}
	server, kv, err := start(dir)
	if err != nil {
		fail("etcd does not start: %v", err)
	}
	ctx, cancel := context.WithTimeout(context.Background(), 20*time.Second)
	defer cancel()
	for n := 1; n <= count; n++ {
		if step == "load" {
			if _, err := kv.Put(ctx, key(n), value(n)); err != nil {
				fail("put: %v", err)
			}
			fmt.Printf("ok %d\n", n)
		} else if got, err := kv.Get(ctx, key(n)); err != nil {
			fail("get: %v", err)
		} else if n <= promised && (len(got.Kvs) != 1 || string(got.Kvs[0].Value) != value(n)) {
			fail("promised key %d is not there", n)
		}
	}
	if _, err := kv.Put(ctx, "last", "1"); err != nil {
		fail("put: %v", err)
	}
	server.Close()
}
