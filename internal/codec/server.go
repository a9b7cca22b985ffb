package codec

import (
	"net/http"
	"slices"

	"go.temporal.io/sdk/converter"
)

// Handler serves /encode and /decode to the web UI. Only pages of the given
// origins may call it: what it answers is clear text.
func Handler(c *Codec, origins []string) http.Handler {
	payloads := converter.NewPayloadCodecHTTPHandler(c)
	return http.HandlerFunc(func(w http.ResponseWriter, r *http.Request) {
		origin := r.Header.Get("Origin")
		if origin != "" && !slices.Contains(origins, origin) {
			http.Error(w, "this origin may not use the codec; name it in --origin", http.StatusForbidden)
			return
		}
		if origin != "" {
			w.Header().Set("Access-Control-Allow-Origin", origin)
			w.Header().Set("Access-Control-Allow-Methods", "POST, OPTIONS")
			w.Header().Set("Access-Control-Allow-Headers", "Authorization, Content-Type, X-Namespace")
			w.Header().Set("Vary", "Origin")
		}
		if r.Method == http.MethodOptions {
			w.WriteHeader(http.StatusNoContent)
			return
		}
		payloads.ServeHTTP(w, r)
	})
}
