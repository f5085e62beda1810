//go:build !linux

/*
Copyright The svm-controller-manager Authors.

Licensed under the Apache License, Version 2.0 (the "License");
you may not use this file except in compliance with the License.
You may obtain a copy of the License at

    http://www.apache.org/licenses/LICENSE-2.0

Unless required by applicable law or agreed to in writing, software
distributed under the License is distributed on an "AS IS" BASIS,
WITHOUT WARRANTIES OR CONDITIONS OF ANY KIND, either express or implied.
See the License for the specific language governing permissions and
limitations under the License.
*/

package controlplane

import (
	"context"
	"errors"
	"net"
	"os"
	"runtime"
	"syscall"
)

var (
	errPlatform     = errors.New("control planes run on Linux only, this is " + runtime.GOOS)
	errProcessEnded = errPlatform
)

func checkPlatform() error                          { return errPlatform }
func onMainThread() bool                            { return false }
func childAttributes() *syscall.SysProcAttr         { return nil }
func killGroup(int) error                           { return errPlatform }
func terminate(int) error                           { return errPlatform }
func pauseGroup(int) error                          { return errPlatform }
func resumeGroup(int) error                         { return errPlatform }
func usageOf(int) (Usage, error)                    { return Usage{}, errPlatform }
func peakOf(*os.ProcessState) int64                 { return 0 }
func takeTurn(context.Context, int) (func(), error) { return nil, errPlatform }
func awaitCalm(context.Context) (func(), error)     { return nil, errPlatform }
func entered() error                                { return errPlatform }
func enterNamespaces() error                        { return errPlatform }
func takeOutsideListener() (net.Listener, error)    { return nil, errPlatform }

type bridgeNetwork struct{ network }

func newBridgeNetwork(bool) (*bridgeNetwork, error) { return nil, errPlatform }

func plugNeighbour(*Host, *Host, bool) error { return errPlatform }

func dialFromHost(context.Context, *Host, string, string) (net.Conn, error) { return nil, errPlatform }
func listenOnHost(*Host, string, string) (net.Listener, error)              { return nil, errPlatform }
