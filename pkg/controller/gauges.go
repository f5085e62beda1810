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

package controller

import (
	"sync/atomic"

	"k8s.io/component-base/metrics"
)

// Gauges is a collector of gauges that are computed when somebody reads the metrics, from the controller that runs. A
// standby has no running controller and shows none of them.
type Gauges[T any] struct {
	metrics.BaseStableCollector

	descs   []*metrics.Desc
	collect func(controller *T, gauge Gauge)
	running atomic.Pointer[T]
}

// Gauge adds one value to the metrics.
type Gauge func(desc *metrics.Desc, value float64, labelValues ...string)

// NewGauges returns a collector of the given metrics. collect computes their values.
func NewGauges[T any](collect func(controller *T, gauge Gauge), descs ...*metrics.Desc) *Gauges[T] {
	return &Gauges[T]{collect: collect, descs: descs}
}

// NewGaugeDesc describes one metric of a collector.
func NewGaugeDesc(subsystem, name, help string, labels ...string) *metrics.Desc {
	return metrics.NewDesc(subsystem+"_"+name, help, labels, nil, metrics.ALPHA, "")
}

// NewCounter returns a counter.
func NewCounter(subsystem, name, help string, labels ...string) *metrics.CounterVec {
	return metrics.NewCounterVec(&metrics.CounterOpts{
		Subsystem: subsystem, Name: name, Help: help, StabilityLevel: metrics.ALPHA,
	}, labels)
}

// Show shows the gauges of a controller.
func (g *Gauges[T]) Show(controller *T) { g.running.Store(controller) }

// Hide stops showing the gauges of a controller.
func (g *Gauges[T]) Hide(controller *T) { g.running.CompareAndSwap(controller, nil) }

// DescribeWithStability implements metrics.StableCollector.
func (g *Gauges[T]) DescribeWithStability(ch chan<- *metrics.Desc) {
	for _, desc := range g.descs {
		ch <- desc
	}
}

// CollectWithStability implements metrics.StableCollector.
func (g *Gauges[T]) CollectWithStability(ch chan<- metrics.Metric) {
	controller := g.running.Load()
	if controller == nil {
		return
	}
	g.collect(controller, func(desc *metrics.Desc, value float64, labelValues ...string) {
		ch <- metrics.NewLazyConstMetric(desc, metrics.GaugeValue, value, labelValues...)
	})
}
