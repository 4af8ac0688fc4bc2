module bb

go 1.22

require go.etcd.io/bbolt v1.3.7

require golang.org/x/sys v0.4.0 // indirect
