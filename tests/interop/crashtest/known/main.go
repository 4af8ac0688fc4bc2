// Stores in Go, for `headworks crashtest`: PROGRAM load|check DIR. `load` prints a line for each key that a call made durable;
// buntdb shrinks its file behind the eighth.
package main

import (
	"bufio"
	"fmt"
	"os"
	"strings"

	"github.com/syndtr/goleveldb/leveldb"
	"github.com/syndtr/goleveldb/leveldb/opt"
	"github.com/tidwall/buntdb"
)

type store interface {
	set(key, value string) error
	get(key string) (string, error)
	pack() error
	close() error
}

type bunt struct{ db *buntdb.DB }

func (s bunt) set(k, v string) error {
	return s.db.Update(func(tx *buntdb.Tx) error { _, _, err := tx.Set(k, v, nil); return err })
}
func (s bunt) get(k string) (v string, err error) {
	err = s.db.View(func(tx *buntdb.Tx) error { v, err = tx.Get(k); return err })
	return
}
func (s bunt) pack() error  { return s.db.Shrink() }
func (s bunt) close() error { return s.db.Close() }

type gold struct{ db *leveldb.DB }

func (s gold) set(k, v string) error {
	return s.db.Put([]byte(k), []byte(v), &opt.WriteOptions{Sync: true})
}
func (s gold) get(k string) (string, error) {
	v, err := s.db.Get([]byte(k), nil)
	return string(v), err
}
func (s gold) pack() error  { return nil }
func (s gold) close() error { return s.db.Close() }

func open(name, dir string) (store, error) {
	switch name {
	case "buntdb":
		db, err := buntdb.Open(dir + "/data.db")
		if err != nil {
			return nil, err
		}
		err = db.SetConfig(buntdb.Config{SyncPolicy: buntdb.Always, AutoShrinkDisabled: true})
		return bunt{db}, err
	case "goleveldb":
		db, err := leveldb.OpenFile(dir+"/level", &opt.Options{WriteBuffer: 64 << 10})
		return gold{db}, err
	}
	return nil, fmt.Errorf("no such store")
}

const count = 12

func value(n int) string { return strings.Repeat(fmt.Sprintf("v%d-", n), 4000) }

func fail(format string, words ...any) {
	fmt.Printf(format+"\n", words...)
	os.Exit(1)
}

func main() {
	name, step, dir := os.Args[1], os.Args[2], os.Args[3]
	promised := 0
	if step == "check" {
		for lines := bufio.NewScanner(os.Stdin); lines.Scan(); {
			fmt.Sscanf(lines.Text(), "ok %d", &promised)
		}
	}
	s, err := open(name, dir)
	if err != nil {
		fail("%s does not open: %v", name, err)
	}
	for n := 1; n <= count; n++ {
		key := fmt.Sprintf("key %02d", n)
		if step == "load" {
			if err := s.set(key, value(n)); err != nil {
				fail("set: %v", err)
			}
			fmt.Printf("ok %d\n", n)
			if n == 8 {
				if err := s.pack(); err != nil {
					fmt.Fprintf(os.Stderr, "pack: %v\n", err)
				}
			}
		} else if v, err := s.get(key); n <= promised && (err != nil || v != value(n)) {
			fail("promised key %d is not there: %v", n, err)
		}
	}
	s.close()
}
