// Asks the service, with the token of this tab.

export function ask(url, options = {}) {
  const token = sessionStorage.getItem("token"), headers = { ...options.headers, ...(token ? { authorization: `Bearer ${token}` } : {}) };
  return fetch(url, { ...options, headers, signal: AbortSignal.timeout(5000) });
}
