package logging

import (
	"context"

	"k8s.io/klog/v2"
)

func log(ctx context.Context) {
	klog.FromContext(ctx).Info("fine")
	klog.InfoS("not fine")   // want `klog.InfoS is not contextual`
	_ = context.Background() // want `context.Background in a library`
}
